// Configs of other programs, given where a DeepSpeed config belongs.
#pragma once

#include <string>
#include <string_view>

namespace zeroplan {

// Throws Error(kUsage) with one line if `text`, which messages call `source`, is the config of a
// program that trains on DeepSpeed or FSDP rather than DeepSpeed's own: whose it is, and which
// options give its values. A text with keys of DeepSpeed's own is let through, and so is JSON that
// belongs to no known program.
void RefuseForeignConfig(std::string_view text, std::string_view source);

}  // namespace zeroplan
