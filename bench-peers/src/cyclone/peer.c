// Cyclone DDS's C API as `over_cyclone.rs` needs it: one participant, a writer and a reader of octets. Errors are the
// library's own negative numbers.
#include <dds/dds.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "blob.h"

struct peer {
    dds_entity_t participant, writer, reader, waitset;
};

static dds_entity_t topic(dds_entity_t participant, const char *name) {
    return dds_create_topic(participant, &takt_Blob_desc, name, NULL, NULL);
}

// A name may be NULL: then there is no writer, or no reader.
int cyclone_open(struct peer **result, const char *writes, const char *reads, bool reliable) {
    struct peer *peer = calloc(1, sizeof(*peer));
    if (peer == NULL) {
        return DDS_RETCODE_OUT_OF_RESOURCES;
    }
    *result = peer;
    if ((peer->participant = dds_create_participant(DDS_DOMAIN_DEFAULT, NULL, NULL)) < 0) {
        return peer->participant;
    }
    dds_qos_t *qos = dds_create_qos();
    dds_qset_reliability(qos, reliable ? DDS_RELIABILITY_RELIABLE : DDS_RELIABILITY_BEST_EFFORT, DDS_SECS(10));
    dds_qset_history(qos, DDS_HISTORY_KEEP_ALL, 0);
    if (writes != NULL) {
        peer->writer = dds_create_writer(peer->participant, topic(peer->participant, writes), qos, NULL);
    }
    if (reads != NULL) {
        peer->reader = dds_create_reader(peer->participant, topic(peer->participant, reads), qos, NULL);
        peer->waitset = dds_create_waitset(peer->participant);
        dds_entity_t condition = dds_create_readcondition(peer->reader, DDS_ANY_STATE);
        int attached = dds_waitset_attach(peer->waitset, condition, 0);
        if (attached < 0) {
            return attached;
        }
    }
    dds_delete_qos(qos);
    return peer->writer < 0 ? peer->writer : peer->reader < 0 ? peer->reader : 0;
}

void cyclone_close(struct peer *peer) {
    dds_delete(peer->participant);
    free(peer);
}

// How many readers the writer has.
int cyclone_readers(struct peer *peer) {
    dds_publication_matched_status_t status;
    int told = dds_get_publication_matched_status(peer->writer, &status);
    return told < 0 ? told : (int)status.current_count;
}

// How many writers the reader has.
int cyclone_writers(struct peer *peer) {
    dds_subscription_matched_status_t status;
    int told = dds_get_subscription_matched_status(peer->reader, &status);
    return told < 0 ? told : (int)status.current_count;
}

int cyclone_write(struct peer *peer, const uint8_t *data, size_t length) {
    takt_Blob blob = {.payload = {._maximum = (uint32_t)length, ._length = (uint32_t)length, ._buffer = (uint8_t *)data}};
    return dds_write(peer->writer, &blob);
}

// Hands up to 256 samples that wait to `see`; waits for the first, for `timeout_ns` at most. How many it were.
int cyclone_take(struct peer *peer, int64_t timeout_ns, void (*see)(void *, const uint8_t *, size_t), void *with) {
    void *samples[256] = {NULL};
    dds_sample_info_t infos[256];
    int count = dds_take(peer->reader, samples, infos, 256, 256);
    if (count == 0) {
        int woken = dds_waitset_wait(peer->waitset, NULL, 0, timeout_ns);
        if (woken <= 0) {
            return woken;
        }
        count = dds_take(peer->reader, samples, infos, 256, 256);
    }
    for (int at = 0; at < count; at++) {
        if (infos[at].valid_data) {
            const takt_Blob *blob = samples[at];
            see(with, blob->payload._buffer, blob->payload._length);
        }
    }
    if (count > 0) {
        int returned = dds_return_loan(peer->reader, samples, count);
        if (returned < 0) {
            return returned;
        }
    }
    return count;
}

const char *cyclone_told(int code) { return dds_strretcode(-code); }
