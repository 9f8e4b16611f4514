// Two launches over rows whose parts are divided among blocks. SPLIT records in a workspace what
// each part accumulates. MERGE merges the parts of a row, and writes the gradients.
#pragma once
#include "numbers/device.cuh"

enum Phase { WHOLE, SPLIT, MERGE };  // WHOLE: one launch does all

// The number of this block. MERGE begins with what SPLIT has read last, which the cache has still.
template <Phase PHASE>
DEVICE unsigned own_block() {
  return PHASE == MERGE ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
}

// The bytes of a record that SPLIT writes for MERGE, at most: of a row, or of one of its splits.
constexpr int RECORD_BYTES = 256;

template <class Record>
DEVICE Record& record(unsigned char* workspace, long long index) {
  static_assert(sizeof(Record) <= RECORD_BYTES, "more than there is room for");
  return *reinterpret_cast<Record*>(workspace + index * RECORD_BYTES);
}
