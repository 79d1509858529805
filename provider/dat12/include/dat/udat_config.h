/* DAT 1.2: what dat_ia_open asks the registry for. */
#ifndef _UDAT_CONFIG_H_
#define _UDAT_CONFIG_H_

#define DAT_VERSION_MAJOR 1
#define DAT_VERSION_MINOR 2

/* libdat2 opens lines of dat.conf that say nonthreadsafe. Define DAT_THREADSAFE as DAT_TRUE before
 * the include to ask for lines that say threadsafe. */
#ifndef DAT_THREADSAFE
#define DAT_THREADSAFE DAT_FALSE
#endif

#endif
