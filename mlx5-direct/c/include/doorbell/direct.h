/*
 * Shared receive queues, completion queues and send queues of mlx5 devices, driven without libmlx5.
 *
 * A program creates its objects by verbs, as always, and takes queues over before their first use.
 * From then on it posts and polls by the functions here, and not by verbs. One thread at a time
 * uses an object of this header; there are no locks. An SRQ, a CQ and a send queue are three
 * objects, which three threads may use. Close an object before its verbs object is destroyed.
 *
 * Functions that can fail return 0 or an error number, as verbs do. The crate mlx5-direct documents
 * which queues can be taken over; EOPNOTSUPP says that a queue cannot.
 */
#ifndef DOORBELL_DIRECT_H
#define DOORBELL_DIRECT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ibv_srq;
struct ibv_cq;
struct ibv_qp;

struct doorbell_srq;
struct doorbell_cq;
struct doorbell_sq;

/* Registered memory. */
struct doorbell_buffer {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
	/* Comes back from doorbell_srq_complete(). */
	uint64_t cookie;
};

/* ---- Shared receive queues ---- */

/* At most `depth` receives will be posted at a time; 0: as many as the queue holds. */
int doorbell_srq_open(struct ibv_srq *verbs, uint32_t depth, struct doorbell_srq **srq);
void doorbell_srq_close(struct doorbell_srq *srq);
/* ENOMEM: the queue is full. */
int doorbell_srq_post(struct doorbell_srq *srq, const struct doorbell_buffer *buffer);
/* Posts with one doorbell; returns how many, fewer than `count` if the queue is full. */
uint32_t doorbell_srq_post_many(struct doorbell_srq *srq, const struct doorbell_buffer *buffers,
				uint32_t count);
/* Frees the slot of a completion. EINVAL: the slot is not in use. */
int doorbell_srq_complete(struct doorbell_srq *srq, uint16_t slot, uint64_t *cookie);
/* Receives that are posted and not completed. */
uint32_t doorbell_srq_posted(const struct doorbell_srq *srq);

/* ---- Completion queues ---- */

enum doorbell_kind {
	/* A receive: `index` is the slot for doorbell_srq_complete(). */
	DOORBELL_RECV = 0,
	/* A receive whose payload is in the completion: doorbell_cq_copy() before the next poll. */
	DOORBELL_RECV_IN_CQE = 1,
	/* A request: `index` is the number for doorbell_sq_complete(). */
	DOORBELL_SEND = 2,
	/* A read whose result is in the completion: doorbell_cq_copy() before the next poll. */
	DOORBELL_SEND_IN_CQE = 3,
	DOORBELL_RECV_ERROR = 4,
	DOORBELL_SEND_ERROR = 5,
};

struct doorbell_completion {
	/* enum doorbell_kind */
	uint8_t kind;
	/* Of a receive: 1 if it has immediate data. */
	uint8_t with_imm;
	uint16_t index;
	uint32_t qpn;
	/* Bytes received, or read. */
	uint32_t byte_count;
	/* Immediate data in host order. */
	uint32_t imm;
	/* Of an error: the device's vendor syndrome. */
	uint32_t vendor_error;
	uint32_t reserved;
};

int doorbell_cq_open(struct ibv_cq *verbs, struct doorbell_cq **cq);
void doorbell_cq_close(struct doorbell_cq *cq);
/*
 * Returns how many completions were polled, at most `count`; a completion that needs
 * doorbell_cq_copy() is the last. -EIO: an entry that cannot be polled.
 */
int doorbell_cq_poll(struct doorbell_cq *cq, struct doorbell_completion *completions, uint32_t count);
/* Copies what the last completion holds; returns the number of bytes. */
size_t doorbell_cq_copy(struct doorbell_cq *cq, void *to, size_t size);
/* As ibv_req_notify_cq(). */
void doorbell_cq_arm(struct doorbell_cq *cq, int solicited_only);
/* Call this for each event that ibv_get_cq_event() returns. */
void doorbell_cq_event_received(struct doorbell_cq *cq);

/* ---- Send queues ---- */

/* Without this flag a request writes a completion only if it fails. */
#define DOORBELL_SIGNALLED 1u
#define DOORBELL_SOLICITED 2u
#define DOORBELL_FENCED 4u

/* The QP may be in any state; post from RTS on. RC and UC. */
int doorbell_sq_open(struct ibv_qp *verbs, struct doorbell_sq **sq);
void doorbell_sq_close(struct doorbell_sq *sq);
/* These return ENOMEM if the queue is full, EINVAL if the request is too long for it. */
int doorbell_sq_send(struct doorbell_sq *sq, const struct doorbell_buffer *from, uint32_t flags);
int doorbell_sq_send_inline(struct doorbell_sq *sq, const void *bytes, size_t length, uint64_t cookie,
			    uint32_t flags);
int doorbell_sq_write(struct doorbell_sq *sq, const struct doorbell_buffer *from, uint64_t remote_addr,
		      uint32_t rkey, uint32_t flags);
int doorbell_sq_read(struct doorbell_sq *sq, const struct doorbell_buffer *into, uint64_t remote_addr,
		     uint32_t rkey, uint32_t flags);
/*
 * Frees the request of a completion and those before it; `requests` gets their number. EINVAL: no
 * such request is outstanding. Both pointers may be NULL.
 */
int doorbell_sq_complete(struct doorbell_sq *sq, uint16_t index, uint64_t *cookie, uint32_t *requests);
/* After the QP went to RESET. */
void doorbell_sq_reset(struct doorbell_sq *sq);

#ifdef __cplusplus
}
#endif

#endif
