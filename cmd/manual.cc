// Prints the man page and the shell completion of a program, from the same lists as its flags.
#include <algorithm>
#include <map>
#include <utility>

#include "cmd/common_options.h"

namespace mc {
namespace {

constexpr const char* kPrograms[] = {"mc-conductor", "mc-decode", "mc-master", "mc-prefill",
                                     "mc-replay",    "mc-store",  "mc-topo",   "mc-xfer"};

std::string flag_words(const OptionList& list) {
  std::string out;
  for (const Option& o : list.all()) out += " --" + o.name;
  return out;
}

std::string roff(const std::string& s) {
  std::string out;
  for (char c : s) out += c == '\\' ? "\\\\" : c == '-' ? "\\-" : std::string(1, c);
  return !out.empty() && (out[0] == '.' || out[0] == '\'') ? "\\&" + out : out;
}

std::string tagged(const std::string& tag, const std::string& text) {
  return ".TP\n" + tag + "\n" + roff(text) + ".\n";
}

std::string table(const OptionList& list) {
  std::string out;
  for (const Option& o : list.all()) {
    std::string tag = "\\fB\\-\\-" + roff(o.name) + "\\fR";
    if (o.kind != Option::Kind::kFlag)
      tag += std::string(" \\fI") + placeholder(o.kind) + "\\fR";
    else if (o.get() == "true")
      tag += ", \\fB\\-\\-no\\-" + roff(o.name) + "\\fR";
    std::string text = o.help;
    if (!o.choices.empty()) text += "; one of";
    for (const auto& c : o.choices) text += " " + c;
    if (!o.get().empty()) text += ". Default: " + o.get();
    out += tagged(tag, text);
  }
  return out;
}

}  // namespace

std::string Program::completion() const {
  const std::string common = flag_words(Common(true).list);
  std::string function = "_" + name_;
  std::replace(function.begin(), function.end(), '-', '_');
  std::string out = function + "() {\n  local words=\"";
  if (body_) out += "--help --version" + flag_words(list_) + common;
  for (const auto& v : verbs_) out += " " + v->name_;
  out += "\"\n";
  if (!verbs_.empty()) {
    out += "  case \"${COMP_WORDS[1]}\" in\n";
    for (const auto& v : verbs_)
      out += "    " + v->name_ + ") words=\"--help" + flag_words(v->list_) + common + "\" ;;\n";
    out += "  esac\n";
  }
  out += "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\")\n}\n";
  return out + "complete -o default -F " + function + " " + name_ + "\n";
}

std::string Program::synopsis(const Verb& verb) const {
  std::string out = ".B " + roff(name_ + (&verb == this ? "" : " " + verb.name_));
  out += "\n[\\fIoptions\\fR]";
  for (const auto& p : verb.positionals_) {
    const std::string word = "\\fI" + roff(p.name) + (p.many ? "...\\fR" : "\\fR");
    out += p.required ? " " + word : " [" + word + "]";
  }
  return out + "\n.br\n";
}

std::string Program::details(const Verb& verb) {
  std::string out;
  for (const auto& p : verb.positionals_) out += tagged("\\fI" + roff(p.name) + "\\fR", p.help);
  return out + table(verb.list_);
}

// Verbs that print tables take one more --output, and are named.
std::string Program::common_options(const std::vector<const Verb*>& verbs) const {
  std::string with;
  for (const Verb* v : verbs)
    if (v->tables_) with += (with.empty() ? "" : ", ") + v->name_;
  Common common(!with.empty());
  if (!with.empty() && !verbs_.empty()) common.list.all()[0].help += " (csv: " + with + ")";
  return table(common.list);
}

// What a verb says of a status stands in a line behind what is common, after the names of all verbs
// that say the same.
std::string Program::statuses(const std::vector<const Verb*>& verbs) const {
  using Note = std::pair<std::string, std::string>;  // names of verbs, what they say
  std::map<int, std::string> common{{0, "done"},
                                    {1, "failed"},
                                    {2, "wrong usage or configuration"},
                                    {3, "a peer is unavailable or timed out"},
                                    {4, "data did not verify"}};
  std::map<int, std::vector<Note>> notes;
  for (const auto& [status, what] : common) notes[status];
  for (const Verb* v : verbs) {
    for (const Status& s : v->statuses_) {
      if (v == this) {
        common[s.status] = s.what;
        notes[s.status];
        continue;
      }
      std::vector<Note>& said = notes[s.status];
      const std::string name = "\\fB" + roff(v->name_) + "\\fR";
      const auto same =
          std::find_if(said.begin(), said.end(), [&](const Note& n) { return n.second == s.what; });
      if (same == said.end())
        said.emplace_back(name, s.what);
      else
        same->first += ", " + name;
    }
  }
  std::string out;
  for (const auto& [status, said] : notes) {
    std::string lines;
    if (const std::string& what = common[status]; !what.empty()) lines = roff(what) + ".\n";
    for (const auto& [names, what] : said)
      lines += (lines.empty() ? "" : ".br\n") + names + ": " + roff(what) + ".\n";
    out += ".TP\n" + std::to_string(status) + "\n" + lines;
  }
  return out;
}

std::string Program::man_page() const {
  std::vector<const Verb*> verbs;
  if (body_) verbs.push_back(this);
  for (const auto& v : verbs_) verbs.push_back(v.get());
  std::string upper = name_;
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  std::string out = ".TH " + roff(upper) + " 1 \"\" \"mc " MC_VERSION "\" \"mc manual\"\n";
  out += ".SH NAME\n" + roff(name_) + " \\- " + roff(summary_) + "\n.SH SYNOPSIS\n";
  for (const Verb* v : verbs) out += synopsis(*v);
  if (body_) out += ".SH OPTIONS\n" + details(*this);
  if (!verbs_.empty()) out += ".SH VERBS\n";
  for (const Verb* v : verbs) {
    if (v == this) continue;
    out += ".SS \"" + roff(v->name_ + ": " + v->summary_) + "\"\n";
    out += details(*v);
  }
  out += ".SH COMMON OPTIONS\n" + common_options(verbs);
  out += tagged("\\fB\\-\\-version\\fR", "Print the version");
  out += tagged("\\fB\\-\\-completion bash\\fR", "Print a completion script");
  out += ".SH ENVIRONMENT\nEvery option can be set as \\fB" + env_name(name_) +
         "_\\fR\\fINAME\\fR, in capitals, with _ for \\-; the common options as "
         "\\fBMC_\\fR\\fINAME\\fR.\nFlags win over the environment, the environment over the file "
         "of \\fB\\-\\-config\\fR, the file over the defaults.\n"
         "A flag, which takes no word, is turned off by \\fB\\-\\-no\\-\\fR\\fINAME\\fR; in the "
         "environment and in the file it is true or false.\n";
  out += ".SH EXIT STATUS\n" + statuses(verbs) + ".SH EXAMPLES\n";
  for (const Verb* v : verbs)
    for (const auto& e : v->examples_) out += tagged("\\fB" + roff(e.command) + "\\fR", e.what);
  if (!body_)
    for (const auto& e : examples_) out += tagged("\\fB" + roff(e.command) + "\\fR", e.what);
  out += ".SH FILES\n" + tagged("\\fI/usr/local/share/mc/configs/" + roff(name_) + ".json\\fR",
                                "A commented file for --config, one key for each option");
  out += ".SH SEE ALSO\n";
  const char* separator = "";
  for (const char* other : kPrograms) {
    if (name_ == other) continue;
    out += std::string(separator) + ".BR " + roff(other) + " (1)";
    separator = ",\n";
  }
  return out + "\n";
}

}  // namespace mc
