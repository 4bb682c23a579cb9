/*
 * cppcheck.h
 *	  What cppcheck must know of PostgreSQL, whose headers it doesn't read: which
 *	  reports don't return.
 */
#define ERROR 21
#define ereport(level, ...) do { if ((level) >= ERROR) abort(); } while (0)
#define elog(level, ...) do { if ((level) >= ERROR) abort(); } while (0)
