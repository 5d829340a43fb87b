#include "text/documents/untrained_members.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/strings.h"
#include "text/files/data_files.h"

namespace zeroplan {
namespace {

constexpr size_t kMostNames = 12;

void AddNew(const std::vector<std::string>& found, std::vector<std::string>* names) {
  for (const std::string& name : found) {
    if (names->size() > kMostNames) return;
    if (std::find(names->begin(), names->end(), name) == names->end()) names->push_back(name);
  }
}

std::string ListOf(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) {
    text += (i == 0 ? "" : ", ") + PrintableText(names[i], 60);
  }
  return names.size() > kMostNames ? text + " and others" : text;
}

// So many members or messages are looked at one by one.
constexpr size_t kMostAlone = 12;

// Whether the template makes another text of `changed` than `rendered`, or refuses it.
bool Differs(const ChatTemplate& chat, const Conversation& changed,
             const ChatTemplate::Rendered& rendered) {
  try {
    return chat.Render(changed, false, "").text != rendered.text;
  } catch (const Error&) {
    return true;
  }
}

// Returns those of `items` that the template prints nothing of. `differs` says whether the text is
// another one with a change to some items. A template may print what it does not name: message |
// tojson.
template <typename T, typename Differs>
std::vector<T> Unprinted(std::vector<T> items, const Differs& differs) {
  if (items.empty() || !differs(std::span<const T>(items))) return items;
  if (items.size() > kMostAlone) items.resize(kMostAlone);
  std::erase_if(items, [&](const T& item) { return differs(std::span<const T>(&item, 1)); });
  return items;
}

std::vector<std::string> UnprintedMembers(const ChatTemplate& chat,
                                          const Conversation& conversation,
                                          const ChatTemplate::Rendered& rendered) {
  std::vector<std::string> names;
  for (const ChatMessage& message : conversation.messages) {
    for (const auto& [name, value] : message.others) {
      const bool known = std::find(names.begin(), names.end(), name) != names.end();
      if (!known && !chat.AsksFor(name, conversation)) names.push_back(name);
    }
  }
  return Unprinted(std::move(names), [&](std::span<const std::string> some) {
    Conversation without = conversation;
    for (ChatMessage& message : without.messages) {
      std::erase_if(message.others, [some](const auto& member) {
        return std::find(some.begin(), some.end(), member.first) != some.end();
      });
    }
    return Differs(chat, without, rendered);
  });
}

std::vector<size_t> UnprintedContents(const ChatTemplate& chat, const Conversation& conversation,
                                      const ChatTemplate::Rendered& rendered) {
  return Unprinted(rendered.unprinted, [&](std::span<const size_t> some) {
    Conversation other = conversation;
    for (const size_t message : some) {
      ChatMessage& changed = other.messages[message];
      changed.content = changed.content.value_or("") + "+";
      if (!changed.parts.empty()) changed.parts.back() += "+";
    }
    return Differs(chat, other, rendered);
  });
}

}  // namespace

std::vector<std::string> UnprintedParts(const ChatTemplate& chat, const Conversation& conversation,
                                        const ChatTemplate::Rendered& rendered) {
  std::vector<std::string> names;
  const auto add = [&](std::string name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(std::move(name));
    }
  };
  if (conversation.tools.IsTrue() && !chat.AsksFor("tools", conversation)) add("tools");
  if (!conversation.documents.is_none() && !chat.AsksFor("documents", conversation))
    add("documents");
  for (const jinja::Member& variable : conversation.variables) {
    const std::string& name = variable.key.text()->bytes;
    if (!chat.AsksFor(name, conversation)) add("chat_template_kwargs." + name);
  }
  for (const std::string& name : UnprintedMembers(chat, conversation, rendered)) {
    add("messages[]." + name);
  }
  for (const size_t message : UnprintedContents(chat, conversation, rendered)) {
    add("contents of the role " + conversation.messages[message].role);
  }
  return names;
}

void UntrainedMembers::Add(const std::string& where, const std::vector<std::string>& unused,
                           const std::vector<std::string>& unprinted) {
  if (unused.empty() && unprinted.empty()) return;
  const std::filesystem::path file = where.substr(0, where.rfind(':'));
  if (all_.empty() || all_.back().files[0] != file) all_.push_back({{file}, {}, {}});
  AddNew(unused, &all_.back().unused);
  AddNew(unprinted, &all_.back().unprinted);
}

void UntrainedMembers::Say() const {
  std::vector<OfFile> different;
  for (const OfFile& one : all_) {
    const auto same = std::find_if(different.begin(), different.end(), [&](const OfFile& other) {
      return other.unused == one.unused && other.unprinted == one.unprinted;
    });
    if (same == different.end()) {
      different.push_back(one);
    } else {
      same->files.push_back(one.files[0]);
    }
  }
  for (const OfFile& one : different) {
    const std::string files = FileNames(one.files);
    if (!one.unused.empty())
      LogInfo("{}: members that are not used: {}.", files, ListOf(one.unused));
    if (!one.unprinted.empty()) {
      LogWarning("{}: the chat template prints nothing of {}.", files, ListOf(one.unprinted));
    }
  }
}

}  // namespace zeroplan
