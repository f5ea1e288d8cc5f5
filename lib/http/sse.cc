#include "http/client.h"

namespace mc::http {
namespace {
constexpr size_t kEventMax = 1 << 20;

// Returns: where the first blank line begins and what follows it, or npos.
struct Gap {
  size_t at, next;
};
Gap find_gap(std::string_view text, size_t from) {
  for (size_t i = text.find('\n', from); i != text.npos; i = text.find('\n', i + 1)) {
    if (i + 1 < text.size() && text[i + 1] == '\n') return {i, i + 2};
    if (i + 2 < text.size() && text[i + 1] == '\r' && text[i + 2] == '\n') return {i, i + 3};
  }
  return {text.npos, text.npos};
}

// Joins the data lines of one event; false when it has none.
bool data_of(std::string_view event, std::string& data) {
  bool any = false;
  while (!event.empty()) {
    const size_t end = event.find('\n');
    std::string_view line = event.substr(0, end);
    event.remove_prefix(end == event.npos ? event.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.starts_with("data")) continue;
    line.remove_prefix(4);
    if (!line.empty() && line.front() != ':') continue;
    if (!line.empty()) line.remove_prefix(1);
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (any) data += '\n';
    data += line;
    any = true;
  }
  return any;
}
}  // namespace

bool SseParser::feed(std::string_view chunk,
                     const std::function<void(std::string_view data)>& event) {
  // A blank line may begin in the last two bytes of the earlier chunk.
  const size_t from = pending_.size() < 2 ? 0 : pending_.size() - 2;
  pending_.append(chunk);
  size_t done = 0;
  for (Gap gap = find_gap(pending_, from); gap.at != std::string::npos;
       gap = find_gap(pending_, done)) {
    if (gap.at - done > kEventMax) return false;
    std::string data;
    if (data_of(std::string_view(pending_).substr(done, gap.at - done), data)) event(data);
    done = gap.next;
  }
  pending_.erase(0, done);
  return pending_.size() <= kEventMax;
}

}  // namespace mc::http
