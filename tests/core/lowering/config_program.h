// Programs lowered from DeepSpeed configs, and how two of them differ: for tests that ask what a
// key of the config does.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/program/program.h"

namespace zeroplan::testing {

using nlohmann::json;

// What the config does not say: two ranks, sequences of 8 tokens, a model of `layers` layers.
struct ConfigContext {
  int world_size = 2;
  int64_t layers = 2;
};

TrainSetup ReadConfig(const json& config, const ConfigContext& where = {});
// Of a tiny model, verified.
Program LowerConfig(const json& config, const ConfigContext& where = {});

// A config with bf16, micro-batch 2 and buckets below a layer's 4352 elements, so that the tiny
// model really shards, cuts and gathers. Nothing is kept whole or for reuse.
json BaseConfig(int stage);
// `base` with one key changed: dots part the sections of `key`.
json With(json base, const std::string& key, json value);
json WithZero(json base, const std::string& key, json value);

// What there is more (positive) or less of in a program than in another, by section, stream and
// sort: "micro_step reduce reduce_scatter" -> 3. Lifetimes and events follow from the others and
// are left out.
using Changes = std::map<std::string, int>;
Changes CountChanges(const Program& before, const Program& after);
// Checks that counts changed just so.
void CheckChanges(const Program& before, const Program& after, const Changes& expected);

// Whether the kernels of forward and backward are the same in the same order: what no key of ZeRO
// may change. Arguments are left out (where a tensor lies is what the keys decide), and so is the
// zeroing of alignment.
bool SameCompute(const Program& a, const Program& b);
// Whether sections are the same but for the numbers of events, which run through all sections.
bool SameSections(const Program& a, const Program& b, const std::vector<Section>& sections);
bool SameProgram(const Program& a, const Program& b);

inline uint64_t Arena(const Program& program, Space space) {
  return program.arena_bytes[static_cast<size_t>(space)];
}
inline uint64_t Persistent(const Program& program, Space space) {
  return program.persistent_bytes[static_cast<size_t>(space)];
}

// The collectives of one kind, as the elements of their segments' sources.
std::vector<std::vector<uint64_t>> SegmentElements(const Program& program, Section section,
                                                   CollectiveKind kind);
uint64_t Sum(const std::vector<uint64_t>& list);
uint64_t Sum(const std::vector<std::vector<uint64_t>>& lists);

}  // namespace zeroplan::testing
