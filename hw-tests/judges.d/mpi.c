/*
 * Point-to-point messages of many sizes, collectives and one-sided operations between all ranks.
 * The program checks every byte.
 * The last line of rank 0: "mpi: all checked".
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

static void check(int good, const char *what, size_t size)
{
	if (good)
		return;
	fprintf(stderr, "error: rank %d: %s, size %zu\n", rank, what, size);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned char byte(int from, size_t at, size_t size)
{
	return (unsigned char)(from * 131 + at * 7 + at / 251 + size);
}

static void fill(unsigned char *buffer, size_t size)
{
	for (size_t i = 0; i < size; i++)
		buffer[i] = byte(rank, i, size);
}

static int filled(const unsigned char *buffer, size_t size, int from)
{
	for (size_t i = 0; i < size; i++)
		if (buffer[i] != byte(from, i, size))
			return 0;
	return 1;
}

static void messages(unsigned char *out, unsigned char *in, size_t size)
{
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	enum { BURST = 16 };
	MPI_Request requests[2 * BURST];

	fill(out, size);
	memset(in, 0, size);
	MPI_Sendrecv(out, size, MPI_BYTE, next, 1, in, size, MPI_BYTE, before, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	check(filled(in, size, before), "sendrecv", size);
	if (size > 100000)
		return;
	memset(in, 0, size * BURST);
	for (int i = 0; i < BURST; i++) {
		MPI_Irecv(in + i * size, size, MPI_BYTE, before, 100 + i, MPI_COMM_WORLD, &requests[i]);
		/* In the opposite order, so that some messages come unexpected. */
		MPI_Isend(out, size, MPI_BYTE, next, 100 + BURST - 1 - i, MPI_COMM_WORLD, &requests[BURST + i]);
	}
	MPI_Waitall(2 * BURST, requests, MPI_STATUSES_IGNORE);
	for (int i = 0; i < BURST; i++)
		check(filled(in + i * size, size, before), "burst", size);
}

static void collectives(void)
{
	int sum = 0, *all = malloc(ranks * sizeof *all), *swapped = malloc(ranks * sizeof *swapped);
	int word = 0;

	MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	check(sum == ranks * (ranks - 1) / 2, "allreduce", sizeof sum);
	word = rank == 0 ? 4711 : 0;
	MPI_Bcast(&word, 1, MPI_INT, 0, MPI_COMM_WORLD);
	check(word == 4711, "bcast", sizeof word);
	for (int i = 0; i < ranks; i++)
		all[i] = rank * 100 + i;
	MPI_Alltoall(all, 1, MPI_INT, swapped, 1, MPI_INT, MPI_COMM_WORLD);
	for (int i = 0; i < ranks; i++)
		check(swapped[i] == i * 100 + rank, "alltoall", sizeof *swapped);
	free(all);
	free(swapped);
}

static void one_sided(void)
{
	enum { WORDS = 1000 };
	long *window_memory, values[WORDS], one = 1, old;
	MPI_Win window;
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;

	MPI_Win_allocate(2 * WORDS * sizeof *values, sizeof *values, MPI_INFO_NULL, MPI_COMM_WORLD, &window_memory, &window);
	memset(window_memory, 0, 2 * WORDS * sizeof *values);
	MPI_Win_fence(0, window);
	for (int i = 0; i < WORDS; i++)
		values[i] = rank * 10000 + i;
	MPI_Put(values, WORDS, MPI_LONG, next, 1, WORDS, MPI_LONG, window);
	MPI_Win_fence(0, window);
	for (int i = 0; i < WORDS; i++)
		check(window_memory[1 + i] == before * 10000 + i, "put", sizeof values);
	MPI_Get(values, WORDS, MPI_LONG, next, 1, WORDS, MPI_LONG, window);
	MPI_Win_fence(0, window);
	for (int i = 0; i < WORDS; i++)
		check(values[i] == rank * 10000 + i, "get", sizeof values);
	MPI_Win_lock_all(0, window);
	for (int i = 0; i < 100; i++) {
		MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 0, MPI_SUM, window);
		MPI_Win_flush(0, window);
		check(old >= i && old < 100L * ranks, "fetch and add", sizeof old);
	}
	MPI_Win_unlock_all(window);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
		check(window_memory[0] == 100L * ranks, "sum of fetch and add", sizeof old);
		MPI_Win_unlock(0, window);
	}
	MPI_Win_free(&window);
}

int main(int argc, char **argv)
{
	size_t largest = 4 << 20;
	unsigned char *out, *in;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	out = malloc(largest);
	in = malloc(largest);
	for (size_t size = 0; size <= largest; size = size * 3 + 1)
		messages(out, in, size);
	messages(out, in, largest);
	collectives();
	if (argc < 2 || strcmp(argv[1], "two-sided") != 0)
		one_sided();
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		puts("mpi: all checked");
	free(out);
	free(in);
	MPI_Finalize();
	return 0;
}
