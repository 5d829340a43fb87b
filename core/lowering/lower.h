// Model + config -> step program. A list of small pure passes, program in and program out.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/config/setup_facts.h"
#include "core/program/program.h"

namespace zeroplan {

class PlacementCache;  // core/lowering/placement.h

// kTrain: sections init, micro_step, optimizer_step, eval, save, load. kGenerate: init, load,
// generate and, with keep_keys_values, decode, with parameters only (one rank, stage 0). In 16 bit
// there are no fp32 masters: weights are rounded as they are loaded, and are 0 before. Logits are
// fp32 in any precision.
enum class Purpose : uint8_t { kTrain, kGenerate };

struct LowerOptions {
  Backend backend = Backend::kCpu;
  Purpose purpose = Purpose::kTrain;
  // Rows of logits held at once are chosen so that a chunk of logits takes at most this many bytes
  // (at least 1 row, at most B*T): as few chunks as that allows, about equal, in multiples of 128
  // rows where these fit. Larger: fewer, larger GEMMs of the head; more memory.
  uint64_t logits_chunk_bytes = 256u << 20;
  // A micro-step of more rows (B*T) than this runs products, norms and activation functions of
  // layers whose products are computed again by tiles of so many rows, where they make tensors that
  // nothing else uses, and so does evaluation. The smaller, the less memory; products of fewer rows
  // than some ten thousand take longer for each. 0: whole.
  int64_t tile_rows = 32'768;
  // Fused attention keeps B*H*T fp32 statistics a layer for the backward pass. Without it (a GPU
  // that has no such kernel) the probabilities [B, H, T, T] are kept in the compute dtype, and
  // while a layer's backward runs as many bytes again hold their gradient. Evaluation and
  // generation hold them for one layer at a time.
  bool flash_attention = true;
  // kGenerate: the keys and values of all tokens stay in memory, 2*G*D elements of the compute
  // dtype for each token and layer, and section decode takes one token more. False: each token is a
  // whole pass of generate.
  bool keep_keys_values = false;
  // Sections save and load, and their staging slots in pinned memory. A run that never saves nor
  // loads can do without.
  bool checkpoints = true;
  // Saves are copied to pageable host memory first, 12 bytes for each of a rank's elements, and
  // written from there while the next steps run (core/program/step_order.h). At stage 0, where one
  // rank writes, every rank has the copy. False: steps wait for a save. Needs `checkpoints`.
  bool async_save = false;
  // Rows of packed documents: batches say where each position's document starts, 4 bytes a
  // position, attention does not look past it and positions count from there. False: a row is one
  // text.
  bool document_borders = false;
  // Elements that a checkpoint staging slot holds.
  uint64_t checkpoint_chunk_elements = 1u << 24;
};

// What the first pass is given: model, setup, backend and layout, no instructions.
Program EmptyProgram(const ModelSpec& model,
                     std::shared_ptr<const std::vector<ParamTensor>> tensors,
                     const TrainSetup& setup, const LowerOptions& options);

// Why ranks cannot share sequences of that model as `batch` has it, if they cannot.
std::optional<SetupProblem> FindSequenceProblem(const ModelSpec& model, const BatchSpec& batch);

// Bytes of the chunk of logits in a program for batches of `rows` tokens a rank. More rows may have
// smaller chunks: two where one no longer suffices.
uint64_t LogitsChunkBytes(const ModelSpec& model, Dtype dtype, int64_t rows,
                          const LowerOptions& options);

// Runs all passes of kPasses (core/lowering/passes.h). REQUIRES: ValidateModelSpec and
// ValidateSetup passed, and FindSequenceProblem finds none.
Program Lower(const ModelSpec& model, const TrainSetup& setup, const LowerOptions& options = {});
// The same for callers that lower many choices of one model: with the parameter table at hand and,
// if given, programs that one choice may take from those before it.
Program Lower(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
              const TrainSetup& setup, const LowerOptions& options = {},
              PlacementCache* cache = nullptr);

// For those who count and time a step but do not run it: sections other than micro_step and
// optimizer_step have no events, and save and load only what their memory follows from. Memory,
// traffic and the step's times are those of Lower()'s.
Program LowerToWalk(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
                    const TrainSetup& setup, const LowerOptions& options,
                    PlacementCache* cache = nullptr);

// What ZeRO does not change of a program: the micro-step of one rank that keeps parameters,
// gradients and states on its GPU, with lifetimes and places; activations have their homes. Its
// kernels can be counted, and what is live beside whole parameters and gradients; it cannot be run.
// Of `setup` ZeRO, accumulation and ranks are left out, but for ranks that share sequences.
Program LowerMicroStep(const ModelSpec& model,
                       std::shared_ptr<const std::vector<ParamTensor>> tensors, TrainSetup setup,
                       const LowerOptions& options);

}  // namespace zeroplan
