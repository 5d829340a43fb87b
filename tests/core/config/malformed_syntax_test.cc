// Configs that must not load: not even Hjson, or no object.
#include <doctest/doctest.h>

#include "tests/core/config/malformed.h"

namespace zeroplan::testing {
namespace {

const MalformedCase kSyntaxCases[] = {
    {R"([])", "[...]", "use an object"},
    {R"(3)", "3", "use an object"},
    {"{\"bf16\": {\"enabled\": true},\n\"bf16\": {}}", "c:2: bf16",
     "here and on line 1; keep one of them"},
    {"", "c:1:1: the file is empty", "a JSON object {...}"},
    {"\n# nothing", "c:2:10: the file is empty", "a JSON object {...}"},
    {"hello", "\"hello\"", "use an object"},
    {"\"zero_optimization\"", "\"zero_optimization\"", "use an object"},
    {"{\"fp16\": {\"enabled\": true}", "c:1:27: the object that starts on line 1 is not closed",
     "add a }"},
    {"{\n\"fp16\": {\n\"enabled\": true\n", "c:4:1: the object that starts on line 2 is not closed",
     "add a }"},
    {"{\"train_batch_size\": 8}}", "unexpected '}'", "remove it"},
    {"{\"train_batch_size\" 8}", "train_batch_size: expected ':'", "found '8'"},
    {"{\"train_batch_size\": }", "expected a value, found '}'", "c:1"},
    {"{\"train_batch_size\": , \"fp16\": {}}", "expected a value, found ','", "c:1"},
    {"{\"optimizer\": {\"type\": \"Adam\" \"params\": {}}}", "type: expected ',' or '}'",
     "found '\"'"},
    {"{\"train_batch_size: 8}", "a string is not closed", "add a \""},
    {"{\"train_batch_size\": 8, \"a\": \"x\n\"}",
     "a string is not closed before the end of the line", "add a \""},
    {"{'train_batch_size: 8}", "a string is not closed", "add a '"},
    {"{\"steps_per_print\": \"\\q\"}", "is not a valid JSON string", "check its escapes"},
    {"{\"train_batch_size\": 8 /* eight }", "the comment is not closed", "end it with */"},
    {"{\"zero_optimization\": {stage: two}}", "is not closed", "two}}"},
    {"train_batch_size: 8\ntrain_batch_size: 16", "c:2: train_batch_size: the key is given twice",
     "here and on line 1"},
    {"{\"zero_optimization\": {\"stage\": 1,\n\"stage\": 2}}", "c:2: stage: the key is given twice",
     "here and on line 1"},
    {"train_batch_size: 8\n}", "c:2:1: unexpected '}'", "remove it"},
    {"train_batch_size: eight", "train_batch_size: \"eight\" is not allowed", "whole number"},
    {"{\n  train_batch_size: 8,8\n}", "c:3:1: 8: expected ':'", "found '}'"},
    {"{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.9, 0.99}}}",
     "list: expected ',' or ']'", "found '}'"},
    {"{\"train_batch_size\": 01\n}", "train_batch_size: \"01\"", "whole number"},
    {"{\"train_batch_size\": +8\n}", "train_batch_size: \"+8\"", "whole number"},
    {"{\"gradient_clipping\": NaN\n}", "gradient_clipping: \"NaN\"", "0 (off)"},
    {"{\"gradient_clipping\": Infinity\n}", "gradient_clipping: \"Infinity\"", "0 (off)"},
    {"{\"gradient_clipping\": 1e999\n}", "gradient_clipping: \"1e999\"", "0 (off)"},
    {"{\"zero_optimization\": {\"device\": cpu,\n}}", "zero_optimization.device",
     "is not a known key"},
    {"{\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": cpu,\n}}}",
     "device: \"cpu,\"", "\"none\", \"cpu\" or \"nvme\""},
};

TEST_CASE("reader: malformed configs name the key and the fix: syntax") {
  for (const MalformedCase& c : kSyntaxCases) CheckMalformed(c);
}

}  // namespace
}  // namespace zeroplan::testing
