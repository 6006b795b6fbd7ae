/* The least a sandbox can cost here: clone into new namespaces, overlay root, pivot, exec, wait.
 *
 * No seccomp, no cgroup, no id range, no hidden paths: nothing that makes it a wall.
 *   floor        run /bin/true once, exit 0 when it did
 *   floor N      run it N times, print the microseconds of each, a line for each
 *   floor N PROGRAM [ARGUMENT...]
 *                run that N times at once, print the microseconds until the last has ended
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NAMESPACES \
    (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)

static void die(const char *step)
{
    fprintf(stderr, "floor: %s: %s\n", step, strerror(errno));
    _exit(70);
}

static void put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0 || close(fd) < 0)
        die(path);
}

/* The child writes its own map of one id: no second process has to be woken for it. */
static void become_root_inside(uid_t uid, gid_t gid)
{
    char line[64];
    put("/proc/self/setgroups", "deny");
    snprintf(line, sizeof line, "0 %u 1", (unsigned)uid);
    put("/proc/self/uid_map", line);
    snprintf(line, sizeof line, "0 %u 1", (unsigned)gid);
    put("/proc/self/gid_map", line);
}

static void enter_overlay_root(void)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        die("private mounts");
    if (mount("tmpfs", "/tmp", "tmpfs", 0, NULL) < 0)
        die("tmpfs");
    if (mkdir("/tmp/upper", 0755) < 0 || mkdir("/tmp/work", 0755) < 0 || mkdir("/tmp/root", 0755) < 0)
        die("mkdir");
    /* /usr as the root itself: with merged directories it holds /bin and /lib, and by this link
     * programs find themselves below /usr too. */
    if (symlink(".", "/tmp/upper/usr") < 0)
        die("symlink");
    if (mount("overlay", "/tmp/root", "overlay", 0,
              "userxattr,lowerdir=/usr,upperdir=/tmp/upper,workdir=/tmp/work") < 0)
        die("overlay");
    if (chdir("/tmp/root") < 0 || syscall(SYS_pivot_root, ".", ".") < 0)
        die("pivot_root");
    if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        die("detach of the old root");
}

static pid_t begin(char **argv)
{
    uid_t uid = getuid();
    gid_t gid = getgid();
    long child = syscall(SYS_clone, NAMESPACES | SIGCHLD, NULL, NULL, NULL, NULL);
    if (child < 0)
        die("clone");
    if (child == 0) {
        char *envp[] = {NULL};
        become_root_inside(uid, gid);
        enter_overlay_root();
        execve(argv[0], argv, envp);
        die("exec");
    }
    return (pid_t)child;
}

static void end(void)
{
    int status;
    if (wait(&status) < 0)
        die("wait");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        exit(70);
}

static void print_since(const struct timespec *begun)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("%.1f\n", (double)(now.tv_sec - begun->tv_sec) * 1e6 +
                         (double)(now.tv_nsec - begun->tv_nsec) / 1e3);
}

int main(int argc, char **argv)
{
    char *usual[] = {"/bin/true", NULL};
    long count = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
    if (argc > 1 && count < 1) {
        fprintf(stderr, "usage: floor [N [PROGRAM [ARGUMENT...]]], with N at least 1\n");
        return 64;
    }
    if (count == 0) {
        begin(usual);
        end();
        return 0;
    }
    struct timespec begun;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (long index = 0; index < count; index++) {
        if (argc > 2) {
            begin(argv + 2);
            continue;
        }
        clock_gettime(CLOCK_MONOTONIC, &begun);
        begin(usual);
        end();
        print_since(&begun);
    }
    if (argc > 2) {
        for (long index = 0; index < count; index++)
            end();
        print_since(&begun);
    }
    return 0;
}
