// Reads JSON schemas into rules: references and combinations in json_schema.cc, what values of a
// type are in json_schema_types.cc.
//
// Thread: one owner. Pure.
#pragma once
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "model/grammar/json_schema.h"
#include "model/grammar/json_text.h"
#include "model/grammar/name_patterns.h"

namespace mc::model::grammar {

class SchemaReader {
 public:
  SchemaReader(Rules& rules, const Json& root, SchemaWork& spent);
  ~SchemaReader();

  Result<Rules::Rule> run();

 private:
  struct Work {
    Rules::Rule rule;
    const Json* schema;
    std::string path;
  };
  using Node = Rules::Node;

  static Failure wrong(const std::string& path, const std::string& keyword, const char* want);
  static Failure unsupported(const std::string& path, const std::string& keyword,
                             const std::string& but = "");

  // A rule of its own, so that reading does not nest.
  Node later(const Json& schema, const std::string& path);
  Result<Node> read(const Json& schema, const std::string& path);
  Result<> check_keywords(const Json& schema, const std::string& path);

  // What a local reference names.
  Result<const Json*> target(const Json& schema, const std::string& path);
  static std::string unescaped(const std::string& part);  // of a JSON pointer in a URI
  Result<Node> read_ref(const Json& schema, const std::string& path);
  static Failure too_many(const std::string& path);
  Result<const Json*> merge(const Json& a, const Json& b, const std::string& path);
  Result<const Json*> keep(Json made, const std::string& path);

  // A schema with those of allOf, and with what they refer to.
  Result<Node> read_all_of(const Json& schema, const std::string& path);
  Result<Node> read_some_of(const Json& schema, const char* some, const std::string& path);
  Result<Node> read_values(const Json& schema, const std::string& keyword, const std::string& path);
  Result<std::vector<std::string>> types_of(const Json& schema, const std::string& path);
  Result<Node> read_type(const std::string& type, const Json& schema, const std::string& path);
  Result<Bounds> read_bounds(const Json& schema, const std::string& path);
  Result<uint32_t> count(const Json& schema, const char* name, uint32_t fallback,
                         const std::string& path);
  Result<Node> read_string(const Json& schema, const std::string& path);
  Result<Node> read_array(const Json& schema, const std::string& path);
  // Values of an enum, in its order.
  Result<Node> read_unique(const Json& schema, uint32_t least, uint32_t most,
                           const std::string& path);
  Node elements(const std::vector<Node>& first, Node rest, uint32_t least, uint32_t most);

  // `value`: what else is said of that member. `matched`: some pattern does.
  Result<const Json*> with_patterns(const std::string& name, const Json* value,
                                    const std::string& path, bool& matched);
  Result<Node> read_object(const Json& schema, const std::string& path);

  struct Member {
    Node node;
    bool required;
  };
  // Other members only where there are no others yet, and one pattern.
  Result<Node> members_by_pattern(const std::vector<Member>& members, bool some,
                                  const std::string& path);
  // The members in their order, with commas, then any number of `other`. `some`: at least one.
  Node members_of(const std::vector<Member>& members, Node other, bool some);

  static constexpr int kHopsMax = 32;
  static constexpr size_t kMergesMax = 4096, kOneOfMax = 64, kCopiedMax = 16 << 20;
  static constexpr size_t kUniqueMax = 32;
  Rules& rules_;
  const Json& root_;
  JsonText text_;
  std::map<std::string, Rules::Rule> rules_of_;  // by what refers to them
  std::deque<Work> work_;
  std::deque<Json> kept_;              // schemas that were put together
  std::vector<NamePattern> patterns_;  // of the object that is read
  SchemaWork& spent_;
};

}  // namespace mc::model::grammar
