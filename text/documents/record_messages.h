// Messages of a record: their roles and contents, the parts that count in the loss, and the members
// next to them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/documents/chat_template.h"
#include "text/documents/record_json.h"
#include "text/documents/records.h"

namespace zeroplan {

// All of these throw Error(kUsage) starting with `where` and naming the member that is wrong.

// Adds the messages of `list`, whose name is `path`. Adds members of their parts that reach no
// template to `unused`.
void AddMessages(const RecordJson& list, std::string_view where, const std::string& path,
                 std::vector<ChatMessage>* messages, std::vector<std::string>* unused);

// Applies the list "loss_mask" of a conversation, which sets for each of its messages whether it
// counts.
void ApplyLossMask(const RecordJson& record, const RecordFormat& format, std::string_view where,
                   std::vector<ChatMessage>* messages);
// Refuses members that change training elsewhere and are not supported: images and the like, marks
// of whole records, labels of preference.
void RefuseUnsupported(const RecordJson& record, const RecordFormat& format,
                       std::string_view where);
// Refuses a conversation whose answer is outside of it, as in preference data.
void RefuseOpenEnd(const RecordJson& record, std::string_view where,
                   const std::vector<ChatMessage>& messages);
// The members that RefuseUnsupported and RefuseOpenEnd check.
const std::vector<std::string>& MembersThatMark();

// Adds "tools" (or "functions"), "documents" and "chat_template_kwargs".
void AddSurroundings(const RecordJson& record, const RecordFormat& format, std::string_view where,
                     Conversation* chat);
// Adds a "system" member outside the messages as the first of them.
void AddSystem(const RecordJson& record, const RecordFormat& format, std::string_view where,
               std::vector<ChatMessage>* messages);

}  // namespace zeroplan
