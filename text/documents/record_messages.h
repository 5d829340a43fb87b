// Messages of a record: who says what, which of it is to be learned, and what stands beside them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/documents/chat_template.h"
#include "text/documents/record_json.h"
#include "text/documents/records.h"

namespace zeroplan {

// All of these throw Error(kUsage) starting with `where` and naming the member that is wrong.

// Adds the messages of `list`, which is called `path`. Members of their parts that no template gets
// are added to `unused`.
void AddMessages(const RecordJson& list, std::string_view where, const std::string& path,
                 std::vector<ChatMessage>* messages, std::vector<std::string>* unused);

// The list "loss_mask" beside a conversation says of each of its messages whether it counts.
void ApplyLossMask(const RecordJson& record, const RecordFormat& format, std::string_view where,
                   std::vector<ChatMessage>* messages);
// Refuses what changes how a record is trained on elsewhere, and is not supported: images and the
// like, marks of whole records, labels of preference.
void RefuseUnsupported(const RecordJson& record, const RecordFormat& format,
                       std::string_view where);
// Refuses a conversation whose answer stands beside it, as in data of preferences.
void RefuseOpenEnd(const RecordJson& record, std::string_view where,
                   const std::vector<ChatMessage>& messages);
// The members that these two look at.
const std::vector<std::string>& MembersThatMark();

// "tools" (or "functions"), "documents" and "chat_template_kwargs".
void AddSurroundings(const RecordJson& record, const RecordFormat& format, std::string_view where,
                     Conversation* chat);
// A "system" beside the messages is the first of them.
void AddSystem(const RecordJson& record, const RecordFormat& format, std::string_view where,
               std::vector<ChatMessage>* messages);

}  // namespace zeroplan
