/*
 * Counts the instructions that a program executes between breakpoint traps, by single steps.
 *
 *   steps OUTPUT PROGRAM [ARGUMENT...]
 *
 * The program's first thread executes INT3 before and after each part to count. OUTPUT has the sum
 * of all parts, one count per line:
 *
 *   instructions N   all instructions
 *   locked N         with a LOCK prefix, or XCHG with memory, which locks without a prefix
 *   fences N         MFENCE, LFENCE, SFENCE
 *   calls N          system calls
 *
 * Then one line for each place of a locked instruction: `at ADDRESS TIMES FILE OFFSET`. callgrind
 * counts instructions as well, but does not distinguish these kinds. On some processors a locked
 * instruction takes as long as twenty others. x86-64 only.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>

enum { MOST_PLACES = 256, TRAP = 0xcc };

static struct { unsigned long long address; long times; } places[MOST_PLACES];
static int used;
static long instructions, locked, fences, calls;

static void die(const char *what)
{
	fprintf(stderr, "steps: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void remember(unsigned long long address)
{
	int i;

	for (i = 0; i < used && places[i].address != address; i++)
		;
	if (i == MOST_PLACES)
		return;
	if (i == used)
		places[used++].address = address;
	places[i].times++;
}

/* Counts the instruction that starts here: locked, fence or system call. */
static void count(const unsigned char *code, size_t len, unsigned long long address)
{
	size_t i = 0;
	int lock = 0;

	for (; i < len; i++) {
		unsigned char c = code[i];

		if (c == 0xf0)
			lock = 1;
		else if (c != 0x66 && c != 0x67 && c != 0xf2 && c != 0xf3 && c != 0x2e && c != 0x36 && c != 0x3e && c != 0x26 &&
			 c != 0x64 && c != 0x65)
			break;
	}
	if (i < len && (code[i] & 0xf0) == 0x40)
		i++;
	instructions++;
	if (i + 2 < len) {
		if ((code[i] == 0x86 || code[i] == 0x87) && code[i + 1] < 0xc0)
			lock = 1;
		if (code[i] == 0x0f && code[i + 1] == 0x05)
			calls++;
		if (code[i] == 0x0f && code[i + 1] == 0xae && code[i + 2] >= 0xe8)
			fences++;
	}
	if (lock) {
		locked++;
		remember(address);
	}
}

/* The rest of an instruction may be on the next page, which need not be mapped. */
static size_t fetch(pid_t pid, unsigned long long address, unsigned char *code, size_t len)
{
	struct iovec to = { code, len }, from = { (void *)(uintptr_t)address, len };
	ssize_t got = process_vm_readv(pid, &to, 1, &from, 1, 0);

	if (got <= 0) {
		from.iov_len = 4096 - address % 4096;
		if (from.iov_len < len)
			got = process_vm_readv(pid, &to, 1, &from, 1, 0);
	}
	return got > 0 ? (size_t)got : 0;
}

/*
 * Keeps this program and the thread that it steps on one core. They take turns at each instruction:
 * between two cores, each turn waits until the other core wakes up. Threads that the program has
 * started before stay where they are.
 */
static void share_a_core(pid_t pid)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	if (sched_setaffinity(0, sizeof one, &one) != 0 || sched_setaffinity(pid, sizeof one, &one) != 0)
		die("affinity");
}

/* Steps from one trap to the next. Returns 0 if the program ended before. */
static int step_through(pid_t pid, int *status)
{
	unsigned char code[16];
	struct user_regs_struct registers;
	size_t len;

	for (;;) {
		if (ptrace(PTRACE_GETREGS, pid, NULL, &registers) != 0)
			die("registers");
		len = fetch(pid, registers.rip, code, sizeof code);
		if (len > 0 && code[0] == TRAP)
			return 1;
		count(code, len, registers.rip);
		if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) != 0)
			die("step");
		if (waitpid(pid, status, 0) != pid)
			die("wait");
		if (!WIFSTOPPED(*status))
			return 0;
	}
}

/* Writes the file and the offset of each place. */
static void write_places(pid_t pid, FILE *out)
{
	char name[64], line[4096], file[4096];
	unsigned long long start, end, offset;
	FILE *maps;
	int i;

	for (i = 0; i < used; i++) {
		snprintf(name, sizeof name, "/proc/%d/maps", pid);
		maps = fopen(name, "r");
		while (maps && fgets(line, sizeof line, maps)) {
			file[0] = 0;
			if (sscanf(line, "%llx-%llx %*s %llx %*s %*s %4095s", &start, &end, &offset, file) >= 3 &&
			    start <= places[i].address && places[i].address < end)
				fprintf(out, "at %#llx %ld %s %#llx\n", places[i].address, places[i].times, file,
					places[i].address - start + offset);
		}
		if (maps)
			fclose(maps);
	}
}

int main(int argc, char **argv)
{
	int status, started = 0, written = 0;
	FILE *out;
	pid_t pid;

	if (argc < 3) {
		fprintf(stderr, "usage: %s OUTPUT PROGRAM [ARGUMENT...]\n", argv[0]);
		return 2;
	}
	out = fopen(argv[1], "w");
	if (!out)
		die(argv[1]);
	pid = fork();
	if (pid < 0)
		die("fork");
	if (pid == 0) {
		personality(ADDR_NO_RANDOMIZE);
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
			die("trace");
		execvp(argv[2], argv + 2);
		die(argv[2]);
	}
	while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
		int signal = WSTOPSIG(status);

		if (signal == SIGTRAP && !started) {
			/* The first exec. Those that follow come as events. */
			started = 1;
			if (ptrace(PTRACE_SETOPTIONS, pid, NULL, (void *)(long)PTRACE_O_TRACEEXEC) != 0)
				die("options");
			signal = 0;
		} else if (status >> 8 == (SIGTRAP | PTRACE_EVENT_EXEC << 8)) {
			signal = 0;
		} else if (signal == SIGTRAP) {
			if (!written)
				share_a_core(pid);
			if (!step_through(pid, &status))
				break;
			rewind(out);
			fprintf(out, "instructions %ld\nlocked %ld\nfences %ld\ncalls %ld\n", instructions, locked, fences, calls);
			write_places(pid, out);
			written = 1;
			/* Continue behind the trap at the end, which has not been executed. */
			{
				struct user_regs_struct registers;

				if (ptrace(PTRACE_GETREGS, pid, NULL, &registers) != 0)
					die("registers");
				registers.rip++;
				if (ptrace(PTRACE_SETREGS, pid, NULL, &registers) != 0)
					die("registers");
			}
			signal = 0;
		}
		if (ptrace(PTRACE_CONT, pid, NULL, (void *)(long)signal) != 0)
			die("continue");
	}
	fclose(out);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		fprintf(stderr, "steps: the program ended with wait status %#x\n", status);
		return 1;
	}
	if (!written) {
		fprintf(stderr, "steps: the program executed no trap\n");
		return 1;
	}
	return 0;
}
