/* File work timed from within, so that the start of no program is part of it.
 *
 *   files work DIR N     create N files of 4 KiB, read them, unlink them
 *   files append DIR N   append one byte to each of the N files DIR/f0 ... that are there
 * Prints one line: the type of DIR's filesystem (hex), and the microseconds for each file.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

static char block[4096];

static void die(const char *step)
{
    fprintf(stderr, "files: %s: %s\n", step, strerror(errno));
    exit(70);
}

static void work(int directory, long count)
{
    char name[32];
    for (long index = 0; index < count; index++) {
        snprintf(name, sizeof name, "f%ld", index);
        int fd = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL, 0644);
        if (fd < 0 || write(fd, block, sizeof block) != sizeof block || close(fd) < 0)
            die("create");
    }
    for (long index = 0; index < count; index++) {
        snprintf(name, sizeof name, "f%ld", index);
        int fd = openat(directory, name, O_RDONLY);
        if (fd < 0 || read(fd, block, sizeof block) != sizeof block || close(fd) < 0)
            die("read");
    }
    for (long index = 0; index < count; index++) {
        snprintf(name, sizeof name, "f%ld", index);
        if (unlinkat(directory, name, 0) < 0)
            die("unlink");
    }
}

static void append(int directory, long count)
{
    char name[32];
    for (long index = 0; index < count; index++) {
        snprintf(name, sizeof name, "f%ld", index);
        int fd = openat(directory, name, O_WRONLY | O_APPEND);
        if (fd < 0 || write(fd, block, 1) != 1 || close(fd) < 0)
            die("append");
    }
}

int main(int argc, char **argv)
{
    long count = argc == 4 ? strtol(argv[3], NULL, 10) : 0;
    if (count < 1) {
        fprintf(stderr, "usage: files work|append DIR N, with N at least 1\n");
        return 64;
    }
    int directory = open(argv[2], O_RDONLY | O_DIRECTORY);
    struct statfs filesystem;
    if (directory < 0 || fstatfs(directory, &filesystem) < 0)
        die(argv[2]);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    if (strcmp(argv[1], "work") == 0)
        work(directory, count);
    else if (strcmp(argv[1], "append") == 0)
        append(directory, count);
    else
        return 64;
    clock_gettime(CLOCK_MONOTONIC, &end);
    double total_us = (double)(end.tv_sec - begin.tv_sec) * 1e6 +
                      (double)(end.tv_nsec - begin.tv_nsec) / 1e3;
    printf("%lx %.3f\n", (unsigned long)filesystem.f_type, total_us / (double)count);
    return 0;
}
