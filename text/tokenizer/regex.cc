#include "text/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <mutex>
#include <vector>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "text/tokenizer/regex_syntax.h"
#include "text/tokenizer/unicode.h"

namespace zeroplan {
namespace {

constexpr size_t kJitStackStart = 32 << 10;
constexpr size_t kJitStackMost = 64 << 20;
// The limit of one search without the just-in-time compiler; ten times PCRE2's own.
constexpr uint32_t kMatchLimit = 100'000'000;

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};
using Code = std::unique_ptr<pcre2_code, Freer<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>>;

PCRE2_SPTR Units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string MessageOf(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

Code Compile(const std::string& pattern, std::string_view written, std::string_view where) {
  const CompileContext context(pcre2_compile_context_create(nullptr));
  ZEROPLAN_CHECK(context != nullptr);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  Code code(pcre2_compile(Units(pattern), pattern.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK, &error, &at,
                          context.get()));
  if (!code) {
    ThrowUsage("{}the regular expression {} cannot be used: {}; rewrite it", where, written,
               MessageOf(error));
  }
  // Fails where the system forbids code made at run time; matching works all the same.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

// Code points that this PCRE2 puts in another category than unicode.h. Found by one pass of each
// category's pattern over that category's code points.
const CodePointBytes& ContestedCodePoints() {
  static const auto* contested = [] {
    std::vector<uint8_t> marks(kCodePoints);
    for (const std::string_view name : kCategoryNames) {
      if (name == "Cs") continue;  // no text has them
      std::string text;
      for (const CodePointRange& range : CategorySet(name)) {
        for (char32_t c = range.first; c <= range.last; ++c) AppendUtf8(c, &text);
      }
      const std::string pattern = fmt::format("\\P{{{}}}", name);
      const Code code = Compile(pattern, pattern, "");
      const MatchData data(pcre2_match_data_create_from_pattern(code.get(), nullptr));
      ZEROPLAN_CHECK(data != nullptr);
      for (size_t at = 0; at < text.size();) {
        const int found = pcre2_match(code.get(), Units(text), text.size(), at, PCRE2_NO_UTF_CHECK,
                                      data.get(), nullptr);
        if (found < 0) break;
        at = pcre2_get_ovector_pointer(data.get())[0];
        marks[NextCodePoint(text, &at)] = 1;
      }
    }
    return new CodePointBytes(marks);
  }();
  return *contested;
}

bool HasContested(std::string_view text) {
  const CodePointBytes* contested = nullptr;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    if (contested == nullptr) contested = &ContestedCodePoints();
    if ((*contested)[NextCodePoint(text, &at)] != 0) return true;
  }
  return false;
}

// What a thread matches with, whatever the expression: they capture nothing.
struct Matcher {
  MatchData data{pcre2_match_data_create(1, nullptr)};
  MatchContext context{pcre2_match_context_create(nullptr)};
  JitStack stack;  // only once an expression needs more than the machine's own

  Matcher() {
    ZEROPLAN_CHECK(data != nullptr && context != nullptr);
    pcre2_set_match_limit(context.get(), kMatchLimit);
  }
  static Matcher& OfThread() {
    thread_local Matcher matcher;
    return matcher;
  }
  // False if it has one already, or there is no memory.
  bool GrowStack() {
    if (stack != nullptr) return false;
    stack.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr));
    if (stack != nullptr) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    return stack != nullptr;
  }
};

}  // namespace

struct Regex::Impl {
  std::string pattern, where;
  PcrePatterns patterns;
  Code native;
  mutable std::once_flag exact_once;
  mutable Code exact;  // compiled when a text first needs it

  const pcre2_code* For(std::string_view text) const {
    if (patterns.exact.empty() || !HasContested(text)) return native.get();
    std::call_once(exact_once, [&] { exact = Compile(patterns.exact, pattern, where); });
    return exact.get();
  }
};

Regex::Regex(std::string_view pattern, std::string_view where) : impl_(std::make_unique<Impl>()) {
  impl_->pattern = pattern;
  impl_->where = where;
  impl_->patterns = TranslateRegex(pattern, where);
  impl_->native = Compile(impl_->patterns.native, pattern, where);
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::ForEachMatch(std::string_view text,
                         const std::function<void(size_t, size_t)>& on_match) const {
  const pcre2_code* code = impl_->For(text);
  Matcher& matcher = Matcher::OfThread();
  size_t jit_bytes = 0;
  const bool is_compiled =
      pcre2_pattern_info(code, PCRE2_INFO_JITSIZE, &jit_bytes) == 0 && jit_bytes > 0;
  const auto match = is_compiled ? pcre2_jit_match : pcre2_match;
  size_t last_end = std::string_view::npos;
  for (size_t from = 0; from <= text.size();) {
    const int found = match(code, Units(text), text.size(), from, PCRE2_NO_UTF_CHECK,
                            matcher.data.get(), matcher.context.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT && matcher.GrowStack()) continue;
    if (found == PCRE2_ERROR_NOMATCH) return;
    if (found < 0) {
      ThrowUsage("{}the regular expression {} gave up on a text ({}); simplify it", impl_->where,
                 impl_->pattern, MessageOf(found));
    }
    const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(matcher.data.get());
    const size_t begin = ovector[0];
    const size_t end = ovector[1];
    if (begin == end && end == last_end) {
      from = end + (end < text.size() ? Utf8Length(text[end]) : 1);
      continue;
    }
    from = end;
    last_end = end;
    on_match(begin, end);
  }
}

}  // namespace zeroplan
