#include "model/text/marked_tokens.h"

#include <algorithm>
#include <utility>

namespace mc::model {

void MarkedTokens::add(Mark mark) {
  if (!mark.text.empty()) by_first_[mark.text[0]].push_back(std::move(mark));
}

void MarkedTokens::sort() {
  for (auto& [first, marks] : by_first_)
    std::stable_sort(marks.begin(), marks.end(),
                     [](const Mark& a, const Mark& b) { return a.text.size() > b.text.size(); });
}

const MarkedTokens::Mark* MarkedTokens::at(std::string_view text) const {
  const auto it = text.empty() ? by_first_.end() : by_first_.find(text[0]);
  if (it == by_first_.end()) return nullptr;
  for (const Mark& mark : it->second)
    if (text.starts_with(mark.text)) return &mark;
  return nullptr;
}

}  // namespace mc::model
