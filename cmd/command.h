// Runs every mc program: verbs, flags, environment, config file, logs and exit codes. It also
// prints --help, --version and the shell completion. Only command.cc includes CLI11, which costs
// seconds in every file that includes it.
//
//   int main(int argc, char** argv) {
//     store::MasterOptions options;
//     Program program("mc-master", "metadata service of the mc KV store");
//     program.options(options);
//     program.example("mc-master --listen 127.0.0.1:5550", "serve on the default port");
//     program.run_with([&](Context& context) -> Result<int> { ...; return 0; });
//     return program.main(argc, argv);
//   }
//
// A program with verbs adds Verbs (see Program::verb); with a body of its own it also runs without
// a verb. Values come from flags, then the environment (MC_<PROGRAM>_<NAME>, or MC_<NAME> for the
// options common to all programs), then the JSON file (--config), then defaults.
//
// Exit codes: 0 done, 1 failed, 2 usage or config, 3 peer unavailable or timed out, 4 data
// integrity. A body may return its own.
//
// Thread: main's.
#pragma once
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/result.h"

namespace CLI {
class App;
}  // namespace CLI

namespace mc {

struct Context {
  std::string program;  // "mc-store"
  bool json = false;    // --output json: results as JSON on stdout; logs are on stderr always
  bool csv = false;     // --output csv, for verbs that said tables()
};

class Verb {
 public:
  using Body = std::function<Result<int>(Context&)>;
  Verb(std::string name, std::string summary)
      : name_(std::move(name)), summary_(std::move(summary)) {}

  template <class Options>
  void options(Options& o) {
    o.describe(list_);
  }
  OptionList& list() { return list_; }
  // Words after the flags, stored in the given variable; `many` takes all remaining words.
  void positional(const char* name, std::string& value, const char* help, bool required = true);
  void positional_many(const char* name, std::vector<std::string>& values, const char* help,
                       bool required = true);
  void example(std::string command, std::string what) {
    examples_.push_back({std::move(command), std::move(what)});
  }
  // What an exit status means here beyond what the common five mean, for the man page. Of a program
  // without verbs it stands in place of the common text.
  void exit_status(int status, std::string what) { statuses_.push_back({status, std::move(what)}); }
  void run_with(Body body) { body_ = std::move(body); }
  void tables() { tables_ = true; }  // allows --output csv

 private:
  friend class Program;
  struct Positional {
    std::string name, help;
    bool required, many;
    std::function<void(const std::vector<std::string>&)> set;
  };
  struct Example {
    std::string command, what;
  };
  struct Status {
    int status;
    std::string what;
  };
  std::string name_, summary_;
  OptionList list_;
  std::vector<Positional> positionals_;
  std::vector<Example> examples_;
  std::vector<Status> statuses_;
  Body body_;
  bool tables_ = false;
  std::shared_ptr<void> state_;  // the options of verbs made by Program::verb
};

class Program : public Verb {
 public:
  using Verb::Verb;
  // A verb whose options live as long as the program:
  //   program.verb<GetOptions>("get", "read an object", [](Verb& v, GetOptions& o) {
  //     v.positional("KEY", o.key, "the object's key");
  //     v.run_with([&o](Context& c) { return get(o, c); });
  //   });
  template <class Options>
  void verb(const char* name, const char* summary,
            const std::function<void(Verb&, Options&)>& build) {
    auto state = std::make_shared<Options>();
    auto v = std::make_unique<Verb>(name, summary);
    v->options(*state);
    build(*v, *state);
    v->state_ = state;
    verbs_.push_back(std::move(v));
  }
  // Adds a line to --version: a library that was found, or why it was not.
  void version_line(std::function<std::string()> line) { version_line_ = std::move(line); }
  int main(int argc, char** argv);

 private:
  struct Common;
  struct Parsed;
  void fit(Verb& verb, CLI::App& app, Parsed& parsed, size_t index);
  static std::string footer(const Verb& verb);
  std::string explain(const Parsed& parsed, const std::vector<std::string>& words,
                      const std::exception& error) const;
  static std::string word_of_flag(const Verb& verb, const std::vector<std::string>& words);
  static Result<> set_words(Verb& verb, const std::vector<std::vector<std::string>>& words,
                            bool optional);
  int run(Verb& verb, Common& common);
  Result<> load(Verb& verb, Common& common,
                const std::vector<std::pair<std::string, std::string>>& flags);
  Result<> from_file(Verb& verb, Common& common);
  Result<> from_environment(Verb& verb, Common& common);
  std::string completion() const;
  std::string man_page() const;
  std::string synopsis(const Verb& verb) const;
  static std::string details(const Verb& verb);
  std::string common_options(const std::vector<const Verb*>& verbs) const;
  std::string statuses(const std::vector<const Verb*>& verbs) const;
  bool known_anywhere(const std::string& name) const;

  std::vector<std::unique_ptr<Verb>> verbs_;
  std::function<std::string()> version_line_;
};

}  // namespace mc
