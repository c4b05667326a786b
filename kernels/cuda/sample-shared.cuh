// What the blocks of a cluster keep of a sample in shared memory, each for itself and for the
// others.
#pragma once
#include "sample-cluster.cuh"

/** Candidates that are sorted in shared memory. */
constexpr int kList = 2048;
constexpr int kPivots = 4;
/** Bins of the first pass: kFine over the first kFineDepth halvings of the weight, the others over
 * the rest to kFloor. */
constexpr int kBins = 512, kFine = 384;
constexpr float kFineDepth = 32.0f;
/** Beyond this many e-folds below the best, a probability is zero in f32. */
constexpr float kFloor = 100.0f;

struct Sampling {
  const float* logits;
  float* scratch;
  float* counts;
  u8* flags;
  const int* bias_ids;
  const float* bias_values;
  int* sampled;
  float* sampled_logprob;
  int* top_ids;
  float* top_logprobs;
  int vocab;
};

/** A point of the ranking: everything with a key above it, summed. */
struct Mark {
  u32 key;
  int count;
  double mass;
};

/** What a block tells the others of its cluster. */
struct Found {
  double mass[kPivots + 1];
  int count[kPivots + 1];
  int length;
  float best;
  int best_id;
  int is_finite;
};

/** Weights in units of 2^−40, as two words each; the last bin is of what cannot be drawn. */
struct Bins {
  u32 low[kBins + 1], high[kBins + 1];
  int count[kBins + 1];
};

struct Shared {
  u64 list[kList];  // ~key << 32 | id: ascending is best first
  union {
    u64 slice[kList];  // the same of the block's own slice, in any order
    Bins bins;         // of the block's own slice
  };
  // Of a bin and those above it.
  double mass_to[kBins];
  int count_to[kBins];
  Found own;
  double sums[kWarps][kPivots + 1];
  int counts[kWarps][kPivots + 1];
  Mark marks[kPivots + 1];  // of the last pass
  double total;
  double prefix[kWarps];
  u64 warp_units[kBins / 32];
  float best;
  int best_id;
  int is_finite;
  int length;
  int found;
};
