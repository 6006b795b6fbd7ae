/* The first process of a machine whose kernel has been taken over: it attacks what is around it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Overwritten by the test. */
static volatile char mode[32] = "MODE=__________________________";

static void end(int how) {
    for (;;) {
        reboot(how);
        sleep(1);
    }
}

/* Where QEMU's microvm has its devices. */
#define DEVICES 0xfeb00000u
#define DEVICES_LENGTH 0x4000u

static void registers(void) {
    mknod("/dev/mem", S_IFCHR | 0600, makedev(1, 1));
    int memory = open("/dev/mem", O_RDWR | O_SYNC);
    volatile uint32_t *at = mmap(0, DEVICES_LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, memory, DEVICES);
    if (at == MAP_FAILED) return;
    if (at[0] != 0x74726976) return; /* "virt": nothing to attack is no attack that held */
    int console = open("/dev/console", O_WRONLY);
    dprintf(console, "cell: devices were reached\n");
    srandom(1);
    for (int round = 0; round < 60000; round++) {
        uint32_t index = (random() % 24) * 0x80 + random() % 0x50;
        uint32_t value = random() % 3 ? random() : random() % 0x20;
        if (random() % 5 == 0) {
            /* A reset, all rings at an address, and a notification. */
            volatile uint32_t *device = at + (random() % 24) * 0x80;
            device[0x70 / 4] = 0;
            device[0x70 / 4] = 7;
            device[0x38 / 4] = 1u << (random() % 16);
            device[0x80 / 4] = random();
            device[0x90 / 4] = random();
            device[0xa0 / 4] = random();
            device[0x44 / 4] = 1;
            device[0x70 / 4] = 15;
            device[0x50 / 4] = random() % 4;
        } else {
            at[index] = value;
        }
    }
}

static void console(void) {
    static char line[4096];
    memset(line, 'x', sizeof line);
    int out = open("/dev/console", O_WRONLY);
    for (int round = 0; round < 64; round++) write(out, line, sizeof line);
}

static void panic(void) {
    mkdir("/proc", 0755);
    mount("proc", "/proc", "proc", 0, "");
    int out = open("/proc/sysrq-trigger", O_WRONLY);
    write(out, "c", 1);
}

static void load_modules(void) {
    struct dirent **names;
    int count = scandir("/modules", &names, 0, alphasort);
    for (int index = 0; index < count; index++) {
        char path[512];
        snprintf(path, sizeof path, "/modules/%s", names[index]->d_name);
        int file = open(path, O_RDONLY);
        syscall(SYS_finit_module, file, "", 0);
        close(file);
    }
}

static int wire(void) {
    load_modules();
    mount("devtmpfs", "/dev", "devtmpfs", 0, "");
    for (int round = 0; round < 2000; round++) {
        int port = open("/dev/vport0p1", O_RDWR);
        if (port >= 0) return port;
        usleep(10000);
    }
    end(RB_AUTOBOOT);
    return -1;
}

static void garbage(void) {
    static char bytes[65536];
    int port = wire();
    srandom(2);
    for (size_t index = 0; index < sizeof bytes; index++) bytes[index] = random();
    for (int round = 0; round < 64; round++) write(port, bytes, sizeof bytes);
}

static void half(void) {
    const unsigned char frame[] = {100, 0, 0, 0, 32, 0, 0};
    write(wire(), frame, sizeof frame);
}

int main(void) {
    const char *name = (const char *)mode + 5;
    if (!strncmp(name, "registers", 9)) registers();
    if (!strncmp(name, "console", 7)) console();
    if (!strncmp(name, "panic", 5)) panic();
    if (!strncmp(name, "garbage", 7)) garbage();
    if (!strncmp(name, "half", 4)) half();
    if (!strncmp(name, "poweroff", 8)) end(RB_POWER_OFF);
    if (!strncmp(name, "stall", 5)) for (;;) pause();
    end(RB_AUTOBOOT);
}
