/* DAT 1.2: what dat_ia_open asks the registry for. */
#ifndef _UDAT_CONFIG_H_
#define _UDAT_CONFIG_H_

#define DAT_VERSION_MAJOR 1
#define DAT_VERSION_MINOR 2

/* The lines that libdat2 opens say nonthreadsafe in dat.conf; define it as DAT_TRUE before the include to ask for others. */
#ifndef DAT_THREADSAFE
#define DAT_THREADSAFE DAT_FALSE
#endif

#endif
