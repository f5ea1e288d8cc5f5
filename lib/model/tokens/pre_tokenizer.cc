#include "model/tokens/pre_tokenizer.h"

#include <algorithm>

#include "model/tokens/text.h"
#include "model/tokens/unicode.h"

namespace mc::model {
namespace {

using Span = Pieces::Span;

// Passes each part of `valid` that is a match or between two to `to(begin, end, is_match)`.
template <class To>
void scan(const Regex& regex, std::string_view valid, const To& to) {
  size_t done = 0;
  for (size_t at = 0; at <= valid.size();) {
    const Regex::Match m = regex.find(valid, at);
    if (!m.found) break;
    if (m.begin > done) to(done, m.begin, false);
    if (m.end > m.begin) to(m.begin, m.end, true);
    done = std::max(done, m.end);
    if (m.end > at)
      at = m.end;
    else if (at < valid.size())
      at += first_character(valid.substr(at)).size;
    else
      break;
  }
  if (done < valid.size()) to(done, valid.size(), false);
}

struct Part {
  Span span;
  bool match;
};

void merge_previous(const std::vector<Part>& parts, std::vector<Span>& out) {
  bool before = false;
  const size_t begin = out.size();
  for (const Part& p : parts) {
    if (p.match && !before && out.size() > begin)
      out.back().end = p.span.end;
    else
      out.push_back(p.span);
    before = p.match;
  }
}

void merge_next(const std::vector<Part>& parts, std::vector<Span>& out) {
  bool after = false;
  const size_t begin = out.size();
  for (auto p = parts.rbegin(); p != parts.rend(); ++p) {
    if (p->match && !after && out.size() > begin)
      out.back().begin = p->span.begin;
    else
      out.push_back(p->span);
    after = p->match;
  }
  std::reverse(out.begin() + static_cast<ptrdiff_t>(begin), out.end());
}

void merge_equal(const std::vector<Part>& parts, std::vector<Span>& out) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0 && parts[i].match == parts[i - 1].match)
      out.back().end = parts[i].span.end;
    else
      out.push_back(parts[i].span);
  }
}

// Begins the text anew, for a step that rewrites it.
class Rewriting {
 public:
  explicit Rewriting(Pieces& pieces) : pieces_(pieces), old_(std::move(pieces.spans)) {
    pieces_.spans.clear();
    pieces_.spans.reserve(old_.size());
    made_.reserve(pieces.text.size() + pieces.text.size() / 2);
  }
  size_t size() const { return old_.size(); }
  std::string_view operator[](size_t i) const {
    return pieces_.text.substr(old_[i].begin, old_[i].end - old_[i].begin);
  }
  bool first(size_t i) const { return pieces_.first && old_[i].begin == 0; }
  std::string& out() { return made_; }
  void end_piece(size_t begin) {
    if (made_.size() > begin) pieces_.spans.push_back({begin, made_.size()});
  }
  void finish() {
    pieces_.first = !old_.empty() && first(0);
    pieces_.own = std::move(made_);
    pieces_.text = pieces_.own;
  }

 private:
  Pieces& pieces_;
  std::vector<Span> old_;
  std::string made_;
};

}  // namespace

void PreTokenizer::add_cut(Regex regex, Keep keep, bool inverted) {
  steps_.push_back({.regex = std::move(regex), .keep = keep, .inverted = inverted});
  if (keep == Keep::kRemoved) drops_text_ = true;
}

void PreTokenizer::cut(const Step& how, Pieces& pieces) {
  std::vector<Span> out;
  std::vector<Part> parts;
  out.reserve(pieces.spans.size() * 2 + pieces.text.size() / 8);
  const bool plain = how.keep == Keep::kIsolated || how.keep == Keep::kRemoved;
  for (const Span& span : pieces.spans) {
    size_t at = span.begin;
    while (at < span.end) {
      const std::string_view rest = pieces.text.substr(at, span.end - at);
      const size_t valid = valid_prefix(rest);
      parts.clear();
      scan(how.regex, rest.substr(0, valid), [&](size_t begin, size_t end, bool match) {
        match = match != how.inverted;
        if (!plain)
          parts.push_back({{at + begin, at + end}, match});
        else if (!match || how.keep == Keep::kIsolated)
          out.push_back({at + begin, at + end});
      });
      if (how.keep == Keep::kMergedPrevious) merge_previous(parts, out);
      if (how.keep == Keep::kMergedNext) merge_next(parts, out);
      if (how.keep == Keep::kContiguous) merge_equal(parts, out);
      at += valid;
      const size_t invalid = invalid_prefix(rest.substr(valid));
      if (invalid > 0) out.push_back({at, at + invalid});
      at += invalid;
    }
  }
  pieces.spans.swap(out);
}

void PreTokenizer::mark_spaces(const Step& how, Pieces& pieces) {
  Rewriting text(pieces);
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view piece = text[i];
    const size_t begin = text.out().size();
    const bool bare = piece.starts_with(' ') || piece.starts_with(how.mark);
    if (how.prefix && !bare && (!how.only_first || text.first(i))) text.out() += how.mark;
    for (const char c : piece) {
      if (c == ' ')
        text.out() += how.mark;
      else
        text.out() += c;
    }
    text.end_piece(begin);
  }
  text.finish();
}

void PreTokenizer::write_letters(const Step& how, Pieces& pieces) {
  Rewriting text(pieces);
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t begin = text.out().size();
    std::string piece(how.prefix && !text[i].starts_with(' ') ? " " : "");
    piece += text[i];
    text.out() += how.letters ? bytes_to_letters(piece) : piece;
    text.end_piece(begin);
  }
  text.finish();
}

void PreTokenizer::split(std::string_view text, bool first, Pieces& out) const {
  out.text = text;
  out.first = first;
  out.spans.clear();
  if (!text.empty()) out.spans.push_back({0, text.size()});
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::Kind::kCut: cut(step, out); break;
      case Step::Kind::kMarkSpaces: mark_spaces(step, out); break;
      case Step::Kind::kWriteLetters: write_letters(step, out); break;
    }
  }
}

}  // namespace mc::model
