#include "cmd/command.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <new>
#include <string_view>

#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "base/units.h"
#include "cmd/common_options.h"
#include "device/cuda.h"
#include "io/file.h"

extern char** environ;

namespace mc {
namespace {

using Flags = std::vector<std::pair<std::string, std::string>>;

constexpr size_t kErrorMax = 4000;  // bytes

// A peer's words may be in it: they are no commands to a terminal.
std::string printable(const std::string& name, std::string what) {
  if (what.size() > kErrorMax) what = one_line(what, kErrorMax);
  std::string out = name + ": ";
  for (size_t at = 0; at <= what.size();) {
    const size_t end = std::min(what.find('\n', at), what.size());
    out += one_line(std::string_view(what).substr(at, end - at), kErrorMax) + "\n";
    at = end + 1;
  }
  return out;
}

// Whether an error is about that value: it quotes it, or has it as a word.
bool is_about(const std::string& what, const std::string& value) {
  if (value.empty()) return false;
  for (const std::string& quoted : {escape(value), value})
    if (what.find("'" + quoted + "'") != std::string::npos) return true;
  const bool is_short = value.size() <= 2;  // and might be part of much, as of FILE:1:
  const auto ends_word = [&](char c, bool behind) {
    const bool letter = std::isalnum(static_cast<unsigned char>(c)) != 0;
    return is_short ? c == ' ' || (behind && c == ':') : !letter;
  };
  const size_t at = what.find(value), end = at + value.size();
  return at != std::string::npos && (at == 0 || ends_word(what[at - 1], false)) &&
         (end == what.size() || ends_word(what[end], true));
}

// The length of what an error is about: a value, or one of several between commas; 0: of nothing.
size_t about(const std::string& what, const std::string& value) {
  if (is_about(what, value)) return value.size();
  size_t longest = 0;
  for (size_t at = 0; at < value.size();) {
    const size_t comma = std::min(value.find(',', at), value.size());
    const std::string part = value.substr(at, comma - at);
    if (part.size() > longest && part.size() < value.size() && is_about(what, part))
      longest = part.size();
    at = comma + 1;
  }
  return longest;
}

// An error names the flags whose value it is about. Of several values the longest counts.
std::string with_flags(std::initializer_list<const OptionList*> lists, const std::string& what) {
  std::string flags;
  size_t longest = 0;
  for (const OptionList* const list : lists)
    for (const Option& o : list->all()) {
      const std::string value = o.origin == "default" ? "" : o.get();
      if (value.empty()) continue;
      const bool told =
          what.find("--" + o.name) != std::string::npos ||
          (o.name.find('-') != std::string::npos && what.find(o.name) != std::string::npos);
      if (told) return what;
      size_t length = about(what, value);
      if (const auto size = parse_bytes(value); o.kind == Option::Kind::kSize && size)
        length = std::max(length, about(what, rounded_bytes_text(*size)));  // as people read it
      if (length == 0 || length < longest) continue;
      flags = (length == longest ? flags + ", " : "") + "--" + o.name;
      longest = length;
    }
  return flags.empty() ? what : flags + ": " + what;
}

// Else the next file that is opened has the descriptor of a closed one, and what is printed gets
// into it. To print stays an error.
void occupy_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF)
      (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // the lowest free one
}

std::string unknown_verb(const std::string& word, const std::vector<std::string>& verbs) {
  const std::string near = nearest(word, verbs);
  std::string all;
  for (const auto& v : verbs) all += (all.empty() ? "" : ", ") + v;
  return "unknown verb '" + escape(word) +
         "': " + (near.empty() ? "want one of " + all : "did you mean " + near + "?") +
         " (see --help)";
}

}  // namespace

void Verb::positional(const char* name, std::string& value, const char* help, bool required) {
  positionals_.push_back(
      {name, help, required, false, [&value](const std::vector<std::string>& words) {
         value = words.empty() ? value : words[0];
       }});
}

void Verb::positional_many(const char* name, std::vector<std::string>& values, const char* help,
                           bool required) {
  positionals_.push_back({name, help, required, true,
                          [&values](const std::vector<std::string>& words) { values = words; }});
}

namespace {

// `spelled` on the command line.
CLI::Option* add_valued(CLI::App& app, const Option& o, const std::string& spelled, Flags& out,
                        const std::string& help) {
  const auto take = [&out, name = std::string(o.name),
                     kind = o.kind](const std::vector<std::string>& words) {
    std::string joined;
    for (const auto& word : words) joined += (joined.empty() ? "" : ",") + word;
    out.emplace_back(name, kind == Option::Kind::kList ? joined : words.back());
  };
  return app.add_option_function<std::vector<std::string>>("--" + spelled, take, help)
      ->type_name(placeholder(o.kind))
      ->expected(1)
      ->allow_extra_args(false)  // one word each, so that a positional can follow
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

// Of a flag the help names the form that changes it: both where it is on by default.
struct FlagFormatter : CLI::Formatter {
  std::string make_option_name(const CLI::Option* o, bool is_positional) const override {
    return o->get_fnames().empty() ? CLI::Formatter::make_option_name(o, is_positional)
                                   : o->get_name();
  }
};

void add_flags(CLI::App& app, const OptionList& list, Flags& out, const std::string& group) {
  for (const Option& o : list.all()) {
    const std::string name = o.name;
    const std::string help = o.help + (o.get().empty() ? "" : " [" + o.get() + "]");
    CLI::Option* added = nullptr;
    if (o.kind == Option::Kind::kFlag) {
      added = app.add_flag_function(
          "--" + name + ",!--no-" + name,
          [&out, name](int64_t n) { out.emplace_back(name, n > 0 ? "true" : "false"); }, help);
      if (o.get() == "true") added->option_text("or --no-" + name);
    } else {
      added = add_valued(app, o, name, out, help);
      // A list of one word reads better in the singular: --transport tcp.
      const std::string one = name.substr(0, name.size() - 1);
      const auto named_so = [&](const Option& other) { return one == other.name; };
      if (o.kind == Option::Kind::kList && name.back() == 's' &&
          std::none_of(list.all().begin(), list.all().end(), named_so))
        add_valued(app, o, one, out, help)->group("");
    }
    added->group(group);
  }
}

}  // namespace

struct Program::Parsed {
  // The words that CLI11 collected for one verb, before any is applied.
  struct Collected {
    Flags flags;
    std::vector<std::vector<std::string>> words;
  };

  CLI::App app;
  Flags common_flags;
  std::vector<Collected> collected;  // of the program itself, then of each verb
  std::vector<CLI::App*> apps;
};

void Program::fit(Verb& verb, CLI::App& app, Parsed& p, size_t i) {
  app.formatter(std::make_shared<FlagFormatter>());
  add_flags(app, verb.list_, p.collected[i].flags, "Options");
  add_flags(app, Common(verb.tables_).list, p.common_flags, "Common options");
  p.collected[i].words.resize(verb.positionals_.size());
  for (size_t k = 0; k < verb.positionals_.size(); ++k) {
    const auto& positional = verb.positionals_[k];
    auto* o = app.add_option(positional.name, p.collected[i].words[k], positional.help);
    o->type_name("")->expected(positional.many ? (positional.required ? 1 : 0) : 1,
                               positional.many ? 1 << 20 : 1);
    o->allow_extra_args(positional.many);
  }
  app.footer(footer(verb));
  p.apps.push_back(&app);
}

std::string Program::footer(const Verb& verb) {
  std::string out = verb.examples_.empty() ? "" : "Examples:\n";
  for (const auto& e : verb.examples_) out += "  " + e.command + "\n      " + e.what + "\n";
  return out;
}

// For an unknown flag, suggests the nearest known one; for a flag that got a word, how it is turned
// off or on.
std::string Program::explain(const Parsed& p, const std::vector<std::string>& words,
                             const std::exception& e) const {
  std::vector<std::string> names;
  const Verb* verb = this;
  for (size_t i = 0; i < p.apps.size(); ++i)
    if (i == 0 || p.apps[i]->parsed()) {
      verb = i == 0 ? this : verbs_[i - 1].get();
      for (const auto* o : p.apps[i]->get_options()) {
        if (!o->get_name().empty()) names.push_back(o->get_name());
        for (const std::string& off : o->get_fnames()) names.push_back("--" + off);
      }
    }
  const bool extra = dynamic_cast<const CLI::ExtrasError*>(&e) != nullptr;
  if (dynamic_cast<const CLI::Error*>(&e) == nullptr || extra)
    if (std::string what = word_of_flag(*verb, words); !what.empty()) return what;
  const std::string what = e.what();
  if (!extra) return what;
  const std::string word = what.substr(what.rfind(' ') + 1);
  const auto near = nearest(word.substr(0, word.find('=')), names);
  if (near.empty() || !word.starts_with("-")) return what;
  return "unknown option " + word + ": did you mean " + near + "?";
}

// The first word that is given to a flag, which takes none; "": there is none.
std::string Program::word_of_flag(const Verb& verb, const std::vector<std::string>& words) {
  const Common common(verb.tables_);
  const auto is_flag = [&](const std::string& name) {
    const auto is = [&name](const Option& o) {
      return o.name == name && o.kind == Option::Kind::kFlag;
    };
    const auto &mine = verb.list_.all(), &all = common.list.all();
    return std::any_of(mine.begin(), mine.end(), is) || std::any_of(all.begin(), all.end(), is);
  };
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t equal = words[i].find('=');
    const std::string flag = words[i].substr(0, equal);
    if (!flag.starts_with("--") || !is_flag(flag.substr(2))) continue;
    const bool joined = equal != std::string::npos;
    if (!joined && i + 1 == words.size()) continue;
    const std::string word = joined ? words[i].substr(equal + 1) : words[i + 1];
    const auto is = [&word](std::initializer_list<const char*> some) {
      return std::any_of(some.begin(), some.end(), [&](const char* one) { return word == one; });
    };
    const bool on = is({"true", "yes", "on", "1"}), off = is({"false", "no", "off", "0"});
    if (!joined && !on && !off) continue;
    return flag + " takes no word like '" + escape(word) + "': " +
           (on    ? flag + " turns it on"
            : off ? "--no-" + flag.substr(2) + " turns it off"
                  : flag + " turns it on, --no-" + flag.substr(2) + " off");
  }
  return {};
}

int Program::main(int argc, char** argv) {
  occupy_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files is an error of the write
  Parsed p{CLI::App(summary_, name_), {}, std::vector<Parsed::Collected>(verbs_.size() + 1), {}};
  if (argc == 2 && std::string(argv[1]) == "--help-man") {
    std::fputs(man_page().c_str(), stdout);
    return 0;
  }
  if (argc >= 2 && std::string(argv[1]) == "--completion") {
    if (argc != 3 || std::string(argv[2]) != "bash") {
      std::fputs(printable(name_, "--completion knows only bash (see --help)").c_str(), stderr);
      return 2;
    }
    std::fputs(completion().c_str(), stdout);
    return 0;
  }
  std::vector<std::string> verbs;
  for (const auto& v : verbs_) verbs.push_back(v->name_);
  if (!verbs.empty() && argc >= 2 && argv[1][0] != '-' &&
      std::find(verbs.begin(), verbs.end(), argv[1]) == verbs.end()) {
    std::fputs(printable(name_, unknown_verb(argv[1], verbs)).c_str(), stderr);
    return 2;
  }
  p.app.set_version_flag("--version", name_ + " " + MC_VERSION);
  p.app.add_option("--completion", "print a completion script (bash)")->type_name("SHELL");
  p.app.require_subcommand(body_ ? 0 : 1, 1);
  if (body_) {
    fit(*this, p.app, p, 0);
  } else {
    p.apps.push_back(&p.app);
    p.app.footer(footer(*this));
  }
  for (size_t i = 0; i < verbs_.size(); ++i)
    fit(*verbs_[i], *p.app.add_subcommand(verbs_[i]->name_, verbs_[i]->summary_), p, i + 1);
  try {
    p.app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(p.app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::CallForVersion&) {
    std::printf("%s %s\n%s\n", name_.c_str(), MC_VERSION, device::cuda_summary().c_str());
    if (version_line_) std::printf("%s\n", version_line_().c_str());
    return 0;
  } catch (const std::exception& e) {  // CLI11 lets the standard library's through as well
    const std::string what = explain(p, {argv + 1, argv + argc}, e);
    std::fputs(printable(name_, what + " (see --help)").c_str(), stderr);
    return 2;
  }
  size_t chosen = 0;
  for (size_t i = 1; i < p.apps.size(); ++i)
    if (p.apps[i]->parsed()) chosen = i;
  Verb& verb = chosen == 0 ? *this : *verbs_[chosen - 1];
  Common common(verb.tables_);
  Parsed::Collected& collected = p.collected[chosen];
  collected.flags.insert(collected.flags.end(), p.common_flags.begin(), p.common_flags.end());
  auto loaded = load(verb, common, collected.flags);
  if (loaded) loaded = set_words(verb, collected.words, common.print_config);
  if (!loaded) {
    std::fputs(printable(name_, loaded.error().what).c_str(), stderr);
    return 2;
  }
  return run(verb, common);
}

Result<> Program::set_words(Verb& verb, const std::vector<std::vector<std::string>>& words,
                            bool optional) {
  for (size_t k = 0; k < verb.positionals_.size(); ++k) {
    const auto& positional = verb.positionals_[k];
    if (words[k].empty() && positional.required && !optional)
      return fail(Code::kInvalid, "%s is missing (see --help)", positional.name.c_str());
    positional.set(words[k]);
  }
  return {};
}

namespace {

// What libraries throw ends the program with a sentence, not with a signal.
Result<int> carry_out(const std::function<Result<int>(Context&)>& body, Context& context) {
  try {
    return body(context);
  } catch (const std::bad_alloc&) {
    return fail(Code::kNoSpace, "out of memory");
  } catch (const std::exception& e) {
    return fail(Code::kInternal, "%s", e.what());
  }
}

}  // namespace

int Program::run(Verb& verb, Common& common) {
  if (common.print_config) {
    std::fputs(config_text(verb.list_, "effective options of " + name_ +
                                           (&verb == this ? "" : " " + verb.name_))
                   .c_str(),
               stdout);
    return 0;
  }
  if (auto logs = set_up_logs(name_, common.log_level, common.log_format); !logs) {
    std::fputs(printable(name_, logs.error().what).c_str(), stderr);
    return 2;
  }
  Context context{name_, common.output == "json", common.output == "csv"};
  auto done = carry_out(verb.body_, context);
  if (done) {
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      std::fputs(printable(name_, "writing the results failed").c_str(), stderr);
      return 1;
    }
    return *done;
  }
  const Error& error = done.error();
  std::fflush(stdout);
  const std::string what = with_flags({&verb.list_, &common.list}, error.what);
  std::fputs(printable(name_, what + " (" + mc::name(error.code) + ")").c_str(), stderr);
  return code_info(error.code).exit_code;
}

Result<> Program::load(Verb& verb, Common& common, const Flags& flags) {
  // --config names a source of other options, so it comes first.
  if (const char* path = std::getenv("MC_CONFIG")) common.config = path;
  for (const auto& [name, value] : flags)
    if (name == "config") common.config = value;
  if (auto read = from_file(verb, common); !read)
    return fail(read.error().code, "--config: %s", read.error().what.c_str());
  MC_TRY_(from_environment(verb, common));
  for (const auto& [name, value] : flags) {
    auto option = verb.list_.find(name, "flags");
    if (!option) option = common.list.find(name, "flags");
    if (!option) return fail(option.error());
    if (auto set = (*option)->set(value); !set)
      return fail(Code::kInvalid, "--%s: %s", name.c_str(), set.error().what.c_str());
    (*option)->origin = "flag";
  }
  return {};
}

bool Program::known_anywhere(const std::string& name) const {
  auto has = [&](const Verb& v) {
    return std::any_of(v.list_.all().begin(), v.list_.all().end(),
                       [&](const Option& o) { return o.name == name; });
  };
  return has(*this) ||
         std::any_of(verbs_.begin(), verbs_.end(), [&](const auto& v) { return has(*v); });
}

Result<> Program::from_file(Verb& verb, Common& common) {
  if (common.config.empty()) return {};
  MC_TRY(const std::string text, io::read_file(common.config));
  auto json = parse_json(text, kJsonFile);
  if (!json)
    return fail(Code::kInvalid, "%s: %s", common.config.c_str(), json.error().what.c_str());
  if (!json->is_object())
    return fail(Code::kInvalid, "%s: want an object of options", common.config.c_str());
  Json mine = Json::object(), shared = Json::object();
  for (const auto& [key, value] : json->items()) {
    const bool is_common = key != "config" && common.list.find(key, "").has_value();
    const bool is_mine = verb.list_.find(key, "").has_value();
    // One file serves all verbs of a program: an option of another verb is no error here.
    if (!is_mine && !is_common && known_anywhere(key)) continue;
    (is_common && !is_mine ? shared : mine)[key] = value;
  }
  MC_TRY_(apply_json(common.list, shared, common.config));
  return apply_json(verb.list_, mine, common.config);
}

Result<> Program::from_environment(Verb& verb, Common& common) {
  auto apply = [](Option& o, const char* variable, const char* value) -> Result<> {
    if (auto set = o.set(value); !set)
      return fail(Code::kInvalid, "%s: %s", variable, set.error().what.c_str());
    o.origin = "environment";
    return {};
  };
  for (Option& o : common.list.all()) {
    const std::string variable = "MC_" + env_name(o.name);
    if (const char* value = std::getenv(variable.c_str()))
      MC_TRY_(apply(o, variable.c_str(), value));
  }
  const std::string prefix = env_name(name_) + "_";  // MC_MASTER_
  for (Option& o : verb.list_.all()) {
    const std::string variable = prefix + env_name(o.name);
    if (const char* value = std::getenv(variable.c_str()))
      MC_TRY_(apply(o, variable.c_str(), value));
  }
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string entry = *e;
    if (!entry.starts_with(prefix)) continue;
    const std::string variable = entry.substr(0, entry.find('='));
    std::string name = variable.substr(prefix.size());
    for (char& c : name) c = c == '_' ? '-' : static_cast<char>(std::tolower(c));
    if (known_anywhere(name)) continue;
    auto missing = verb.list_.find(name, variable.c_str());
    return fail(Code::kInvalid, "%s", missing.error().what.c_str());
  }
  return {};
}

}  // namespace mc
