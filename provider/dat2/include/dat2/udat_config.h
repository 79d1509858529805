/* DAT 2.0: what dat_ia_open asks the registry for. */
#ifndef _UDAT_CONFIG_H_
#define _UDAT_CONFIG_H_

#define DAT_VERSION_MAJOR 2
#define DAT_VERSION_MINOR 0

/* Lines of dat.conf that say nonthreadsafe. Every provider says so, also one that is thread safe:
 * the word is part of the name by which the registry finds the provider. */
#define DAT_THREADSAFE DAT_FALSE

/* The extensions are part of the structures and of the provider's table. */
#ifndef DAT_EXTENSIONS
#define DAT_EXTENSIONS 1
#endif

#endif
