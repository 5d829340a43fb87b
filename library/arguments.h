// Options of the public header as the fields of a request.
#pragma once

#include <zeroplan/zeroplan.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "planner/request/fields.h"

namespace zeroplan {

// Takes the fields of a request, and reads them from options.
class Arguments : public FieldSink {
 public:
  void Take(AddedField field) override { fields_.push_back(std::move(field)); }

  // `command`: what the program calls it, "plan", for messages. Throws Error(kUsage) with the
  // messages of that command.
  void Read(const char* command, const v1::Options& options);
  std::vector<v1::OptionHelp> Help() const;

 private:
  std::deque<AddedField> fields_;
};

// The command line that asks the same. Throws Error(kUsage) for an option without a name.
std::string CommandLineOf(const char* command, const v1::Options& options);

}  // namespace zeroplan
