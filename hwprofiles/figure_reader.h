// Reads figures out of a profile's JSON by path and remembers which paths were read, so that what
// is left over can be refused as unknown.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hwprofiles/parts.h"
#include "hwprofiles/profile.h"
#include "hwprofiles/units.h"

namespace zeroplan {

// What a figure may be: its dimension, and the range (base units) outside which it is a slip.
struct FigureRule {
  Dimension dimension;
  double low, high;
};

// What surrounds a table's rows.
struct TableText {
  const ProfileJson* rows;  // of the reader
  double scale;             // of the table's unit
  FigureSource source;
  std::string reference;
};

class FigureReader {
 public:
  // Throws Error(kUsage) if `json` is not a JSON object. `source` is what errors begin with.
  FigureReader(ProfileJson json, std::string_view source);

  // `path` is dotted ("gpu.peaks.bf16.dense").
  Figure Required(const std::string& path, const FigureRule& rule);
  std::optional<Figure> Optional(const std::string& path, const FigureRule& rule);
  std::string Text(const std::string& path);
  // REQUIRES: Has(path). The rows are the caller's to check.
  TableText Table(const std::string& path, Dimension dimension,
                  std::span<const std::string_view> columns);
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
  const ProfileJson* Find(const std::string& path) const;
  const ProfileJson& Need(const std::string& path) const;
  void RefuseUnread(const ProfileJson& node, const std::string& path) const;
  Figure Read(const std::string& path, const ProfileJson& node, const FigureRule& rule);
  // A member that must be a text; `fix` says what to give.
  std::string Member(const std::string& path, const ProfileJson& node, const char* key,
                     std::string_view fix);
  FigureSource ReadSource(const std::string& path, const ProfileJson& node);
  double ReadUnit(const std::string& path, const ProfileJson& node, Dimension dimension,
                  std::string& unit);

  ProfileJson root_;
  std::string source_;
  std::set<std::string> read_;
};

}  // namespace zeroplan
