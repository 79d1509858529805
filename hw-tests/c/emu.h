/* Orders to the software device, where it is preloaded (hw-tests/mlx5-emu/src/orders.rs). */
#ifndef EMU_H
#define EMU_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>

/* The answer of the device, or -1 without the software device. */
static long emu(const char *order)
{
    long (*control)(const char *) = (long (*)(const char *))dlsym(RTLD_DEFAULT, "mlx5_emu_control");

    return control ? control(order) : -1;
}

#endif
