// Lowers model + config to a step program by a list of small pure passes, program in and program
// out.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/program/program.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {

class PlacementCache;  // core/lowering/placement.h

// kTrain: sections init, micro_step, optimizer_step, eval, save, load. kGenerate: init, load,
// generate and, with keep_keys_values, decode, with parameters only (one rank, stage 0). In 16 bit
// there are no fp32 masters: weights are rounded on loading, and are 0 before. Logits are fp32 in
// any precision.
enum class Purpose : uint8_t { kTrain, kGenerate };

struct LowerOptions {
  Backend backend = Backend::kCpu;
  Purpose purpose = Purpose::kTrain;
  // The rows of logits held at once are chosen so that a chunk of logits has at most this many
  // bytes (at least 1 row, at most B*T): as few chunks as that allows, about equal, in multiples of
  // 128 rows where they fit. A larger value makes fewer, larger GEMMs of the head and needs more
  // memory.
  uint64_t logits_chunk_bytes = 256u << 20;
  // A micro-step of more rows (B*T) than this runs by tiles of this many rows: matmuls, norms and
  // activation functions, in layers whose matmuls are recomputed, where they make tensors that
  // nothing else uses. So does evaluation. A smaller value needs less memory; matmuls of fewer than
  // some ten thousand rows take longer a row. 0: no tiles.
  int64_t tile_rows = 32'768;
  // Fused attention keeps B*H*T fp32 statistics a layer for the backward pass. Without it (a GPU
  // that lacks the kernel) the probabilities [B, H, T, T] are kept in the compute dtype, and while
  // a layer's backward runs their gradient needs as many bytes again. Evaluation and generation
  // hold the probabilities of one layer at a time.
  bool flash_attention = true;
  // kGenerate: the keys and values of all tokens stay in memory, 2*G*D elements of the compute
  // dtype for each token and layer, and section decode makes one more token. False: each token is a
  // whole pass of generate.
  bool keep_keys_values = false;
  // Adds sections save and load, and their staging slots in pinned memory. A run that never saves
  // nor loads needs neither.
  bool checkpoints = true;
  // Saves are copied to pageable host memory first, 12 bytes for each of a rank's elements, and
  // written from there while the next steps run (core/program/step_order.h). At stage 0 one rank
  // writes, but every rank has the copy. False: steps wait for a save. Needs `checkpoints`.
  bool async_save = false;
  // Rows of packed documents: batches give the start of each position's document, 4 bytes a
  // position; attention stays within the document and positions count from its start. False: a row
  // is one text.
  bool document_borders = false;
  // Attention within documents runs on our own fused kernels, whose workspace is smaller. False: on
  // cuDNN's, and programs reserve what these need too.
  bool own_documents = false;
  // The mean number of keys that a token attends to, itself included, over all positions of rows
  // of packed documents, for cost models. 0: unknown, as if each document filled its row.
  double visible_keys = 0;
  // Elements of a checkpoint staging slot.
  uint64_t checkpoint_chunk_elements = 1u << 24;
};

// The first pass's input: model, setup, backend and layout, no instructions.
Program EmptyProgram(const ModelSpec& model,
                     std::shared_ptr<const std::vector<ParamTensor>> tensors,
                     const TrainSetup& setup, const LowerOptions& options);

// The reason why ranks cannot share sequences of that model in `batch`; nothing if they can.
std::optional<SetupProblem> FindSequenceProblem(const ModelSpec& model, const BatchSpec& batch);

// Bytes of the chunk of logits in a program for batches of `rows` tokens a rank. More rows may have
// smaller chunks: two where one no longer suffices.
uint64_t LogitsChunkBytes(const ModelSpec& model, Dtype dtype, int64_t rows,
                          const LowerOptions& options);

// Runs all passes of kPasses (core/lowering/passes.h). REQUIRES: ValidateModelSpec and
// ValidateSetup passed, and FindSequenceProblem finds none.
Program Lower(const ModelSpec& model, const TrainSetup& setup, const LowerOptions& options = {});
// The same for callers that lower many choices of one model: with their parameter table and, if
// given, a cache of earlier choices' placements.
Program Lower(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
              const TrainSetup& setup, const LowerOptions& options = {},
              PlacementCache* cache = nullptr);

// For callers that count and time a step but do not run it. Sections other than micro_step and
// optimizer_step have no events; save and load have only what determines their memory. Memory,
// traffic and step times equal those of Lower()'s program.
Program LowerToWalk(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
                    const TrainSetup& setup, const LowerOptions& options,
                    PlacementCache* cache = nullptr);

// The part of a program that ZeRO does not change: the micro-step of one rank that keeps
// parameters, gradients and states on its GPU, with lifetimes, places and the homes of activations.
// Callers count its kernels and the bytes that are live in addition to whole parameters and
// gradients. It cannot be run. Ignores the ZeRO settings, accumulation and ranks of `setup`, except
// ranks that share sequences.
Program LowerMicroStep(const ModelSpec& model,
                       std::shared_ptr<const std::vector<ParamTensor>> tensors, TrainSetup setup,
                       const LowerOptions& options);

}  // namespace zeroplan
