/* Writes to a file what this program got from the one that started it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

int main(int argc, char **argv)
{
    if (argc != 2)
        return 1;
    /* Before the file takes a descriptor. */
    struct stat about[10];
    int open[10];
    for (int fd = 0; fd < 10; fd++)
        open[fd] = fcntl(fd, F_GETFD) >= 0 && !fstat(fd, &about[fd]);
    FILE *out = fopen(argv[1], "w");
    if (!out)
        return 1;
    for (int fd = 0; fd < 10; fd++)
        fprintf(out, "%d: %s %lx\n", fd, open[fd] ? "open" : "closed", open[fd] ? (long)about[fd].st_ino : 0);
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        if (!sigaction(number, NULL, &action) && (action.sa_handler != SIG_DFL || sigismember(&mask, number)))
            fprintf(out, "signal %d: %s %d\n", number, action.sa_handler == SIG_IGN ? "ignored" : "handled",
                sigismember(&mask, number));
    }
    return fclose(out) != 0;
}
