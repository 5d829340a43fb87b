// Reads figures out of a profile's JSON by path and remembers which paths were read, so that what
// is left over can be refused as unknown.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "hwprofiles/profile.h"
#include "hwprofiles/units.h"

namespace zeroplan {

// What a figure may be: its dimension, and the range (base units) outside which it is a slip.
struct FigureRule {
  Dimension dimension;
  double low, high;
};

class FigureReader {
 public:
  // Throws Error(kUsage) if `json` is not a JSON object.
  FigureReader(std::string_view json, std::string_view source);

  // `path` is dotted ("gpu.peaks.bf16.dense").
  Figure Required(const std::string& path, const FigureRule& rule);
  std::optional<Figure> Optional(const std::string& path, const FigureRule& rule);
  std::string Text(const std::string& path);
  bool Flag(const std::string& path);
  bool Has(const std::string& path) const;
  // Entries of an array, as paths ("runtime.0", ...). Throws if it is not a non-empty array.
  std::vector<std::string> Items(const std::string& path);
  int64_t Integer(const std::string& path, int64_t low, int64_t high);
  // Keys of an object; empty if it is absent.
  std::vector<std::string> Keys(const std::string& path) const;

  // Throws for the first key that nothing has read.
  void RefuseUnread() const;
  // Throws Error(kUsage) "SOURCE: PATH: MESSAGE".
  [[noreturn]] void Fail(const std::string& path, const std::string& message) const;

 private:
  const nlohmann::json* Find(const std::string& path) const;
  const nlohmann::json& Need(const std::string& path) const;
  void RefuseUnread(const nlohmann::json& node, const std::string& path) const;
  Figure Read(const std::string& path, const nlohmann::json& node, const FigureRule& rule);

  nlohmann::json root_;
  std::string source_;
  std::set<std::string> read_;
};

}  // namespace zeroplan
