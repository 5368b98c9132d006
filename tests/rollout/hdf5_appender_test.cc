#include "rollout/hdf5_appender.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <random>

#include "rollout/hdf5.h"

namespace rollcast {
namespace {

using hdf5::ElementType;

class Hdf5AppenderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "rollcast_appender_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
    path_ = directory_ / "file.h5";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path directory_, path_;
};

std::vector<Hdf5Appender::Column> SmallColumns() {
  return {{"flat", ElementType::kInt32, {}, 16},
          {"group/number", ElementType::kFloat64, {}, 8},
          {"group/text", ElementType::kText, {}, 8},
          {"group/list", ElementType::kInt32List, {}, 8},
          {"group/flag", ElementType::kBool, {}, 8},
          {"group/kind", ElementType::kEnum, {"one", "three", "a_longer_name"}, 8}};
}

int32_t FlatValue(uint64_t i) { return static_cast<int32_t>(i * 2654435761u); }
double NumberValue(uint64_t i) { return std::sin(static_cast<double>(i)); }
std::string TextValue(uint64_t i) { return i % 3 == 0 ? "" : std::string(i % 50, 'a' + i % 26); }
std::vector<int32_t> ListValue(uint64_t i) {
  return std::vector<int32_t>(i % 5, static_cast<int32_t>(i));
}

void AppendRows(Hdf5Appender& file, uint64_t count, uint64_t flats) {
  for (uint64_t n = 0, i = file.size(0); n < flats; ++n, ++i)
    file.AppendOne<int32_t>(0, FlatValue(i));
  for (uint64_t n = 0, i = file.size(1); n < count; ++n, ++i) {
    file.AppendOne<double>(1, NumberValue(i));
    file.AppendText(2, TextValue(i));
    file.AppendInt32List(3, ListValue(i));
    file.AppendOne<bool>(4, i % 2 == 1);
    file.AppendOne<uint8_t>(5, i % 3);
  }
}

void ExpectRows(const std::filesystem::path& path, uint64_t rows, uint64_t flats) {
  const Hdf5File file = Hdf5File::Open(path);
  ASSERT_EQ(file.Shape("flat"), std::vector<uint64_t>{flats});
  std::vector<int32_t> flat(flats);
  file.Read<int32_t>("flat", 0, flat);
  for (uint64_t i = 0; i < flats; ++i) ASSERT_EQ(flat[i], FlatValue(i)) << i;
  for (const char* name : {"number", "text", "list", "flag", "kind"})
    ASSERT_EQ(file.Shape(std::string("group/") + name), std::vector<uint64_t>{rows}) << name;
  std::vector<double> numbers(rows);
  file.Read<double>("group/number", 0, numbers);
  std::vector<int8_t> flags(rows), kinds(rows);
  file.Read<int8_t>("group/flag", 0, flags);
  file.Read<int8_t>("group/kind", 0, kinds);
  const auto texts = file.ReadText("group/text", 0, rows);
  const auto lists = file.ReadInt32Lists("group/list", 0, rows);
  for (uint64_t i = 0; i < rows; ++i) {
    ASSERT_EQ(numbers[i], NumberValue(i)) << i;
    ASSERT_EQ(texts[i], TextValue(i)) << i;
    ASSERT_EQ(lists[i], ListValue(i)) << i;
    ASSERT_EQ(flags[i], i % 2) << i;
    ASSERT_EQ(kinds[i], i % 3) << i;
  }
}

TEST_F(Hdf5AppenderTest, EmptyFileOpensWithItsAttributes) {
  Hdf5Appender file(path_, false,
                    {{"text", std::string("größe")},
                     {"empty", std::string()},
                     {"int", int64_t{-5}},
                     {"uint", uint64_t{1} << 63},
                     {"flag", true},
                     {"long", std::string(100000, 'x')}},
                    SmallColumns());
  ExpectRows(path_, 0, 0);
  const Hdf5File reader = Hdf5File::Open(path_);
  EXPECT_EQ(reader.TextAttribute("text"), "größe");
  EXPECT_EQ(reader.TextAttribute("empty"), "");
  EXPECT_EQ(reader.IntAttribute("int"), -5);
  EXPECT_EQ(reader.UIntAttribute("uint"), uint64_t{1} << 63);
  EXPECT_EQ(reader.FlagAttribute("flag"), true);
  EXPECT_EQ(reader.TextAttribute("long"), std::string(100000, 'x'));
  EXPECT_EQ(reader.TextAttribute("other"), std::nullopt);
}

TEST_F(Hdf5AppenderTest, EveryStateIsReadableAcrossChunksAndNodes) {
  Hdf5Appender file(path_, false, {}, SmallColumns());
  uint64_t rows = 0, flats = 0;
  std::mt19937 random(1);
  for (int i = 0; i < 60; ++i) {
    const uint64_t more = random() % 20, more_flats = random() % 100;
    AppendRows(file, more, more_flats);
    ExpectRows(path_, rows, flats);  // staged elements are not seen
    file.Commit();
    rows += more;
    flats += more_flats;
    ExpectRows(path_, rows, flats);
    if (HasFatalFailure()) return;
  }
  file.Close();
  ExpectRows(path_, rows, flats);
}

// 64 chunks fill a leaf of the B-tree and 64 leaves an inner node: 16 * 64 * 64 elements are two
// levels, more are three.
TEST_F(Hdf5AppenderTest, IndexGrowsToThreeLevels) {
  Hdf5Appender file(path_, false, {}, SmallColumns());
  const std::vector<uint64_t> steps = {
      16 * 64, 1, 15, 16 * 64 * 62, 16 * 64 - 16, 1, 15, 16, 16, 16, 20000, 1, 7, 60000};
  uint64_t flats = 0;
  for (const uint64_t step : steps) {
    AppendRows(file, 0, step);
    file.Commit();
    flats += step;
    ExpectRows(path_, 0, flats);
    ASSERT_FALSE(HasFatalFailure()) << flats;
  }
  ASSERT_GT(flats, 16u * 64 * 64);
  for (int i = 0; i < 300; ++i) {
    AppendRows(file, 0, 9);
    file.Commit();
  }
  file.Close();
  ExpectRows(path_, 0, flats + 2700);
}

TEST_F(Hdf5AppenderTest, TextEndsNeitherAtNulNorInBadUtf8) {
  Hdf5Appender file(path_, false, {}, {{"text", ElementType::kText, {}, 8}});
  using std::string_literals::operator""s;
  file.AppendText(0, "a\0b"s);
  file.AppendText(0, "caf\xC3\xA9 \xFF!");
  file.AppendText(0, "\xE2\x82");
  file.Commit();
  EXPECT_EQ(Hdf5File::Open(path_).ReadText("text", 0, 3),
            (std::vector<std::string>{"a\xEF\xBF\xBD"
                                      "b",
                                      "caf\xC3\xA9 \xEF\xBF\xBD!", "\xEF\xBF\xBD\xEF\xBF\xBD"}));
}

TEST_F(Hdf5AppenderTest, ManyTextsInOneCommit) {
  Hdf5Appender file(path_, false, {}, {{"text", ElementType::kText, {}, 1024}});
  for (int i = 0; i < 140000; ++i) file.AppendText(0, std::to_string(i));
  file.AppendText(0, std::string(3 << 20, 'x'));
  file.AppendText(0, "last");
  file.Commit();
  const auto texts = Hdf5File::Open(path_).ReadText("text", 0, 140002);
  for (int i = 0; i < 140000; ++i) ASSERT_EQ(texts[i], std::to_string(i));
  EXPECT_EQ(texts[140000], std::string(3 << 20, 'x'));
  EXPECT_EQ(texts[140001], "last");
}

// A killed process stops before a write, or within one at a page boundary. Both are tried at every
// write, and each time a plain open must give the last commit. The superblock lies in one page.
TEST_F(Hdf5AppenderTest, IsTheLastCommitBeforeAndWithinEveryWrite) {
  Hdf5Appender file(path_, false, {{"text", std::string("value")}}, SmallColumns());
  uint64_t rows = 0, flats = 0;
  int writes = 0, torn = 0, superblocks = 0;
  const int fd = ::open(path_.c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  file.SetWriteHook([&](uint64_t address, std::span<const uint8_t> bytes) {
    ++writes;
    ExpectRows(path_, rows, flats);
    if (address == 0) {
      ++superblocks;
      ASSERT_EQ(bytes.size(), hdf5::kSuperblockBytes);
      return;
    }
    for (uint64_t end = (address / 4096 + 1) * 4096; end < address + bytes.size(); end += 4096) {
      ASSERT_EQ(::pwrite(fd, bytes.data(), end - address, static_cast<off_t>(address)),
                static_cast<ssize_t>(end - address));
      ++torn;
      ExpectRows(path_, rows, flats);
    }
  });
  std::mt19937 random(7);
  const auto steps = [&](int count, uint64_t max_rows, uint64_t max_flats) {
    for (int i = 0; i < count; ++i) {
      const uint64_t more = random() % max_rows, more_flats = random() % max_flats;
      AppendRows(file, more, more_flats);
      file.Commit();
      rows += more;
      flats += more_flats;
      ASSERT_FALSE(testing::Test::HasFailure()) << i;
    }
  };
  steps(40, 5, 20);
  steps(2, 200, 2000);
  steps(20, 8, 40);
  file.Close();
  ::close(fd);
  ExpectRows(path_, rows, flats);
  EXPECT_EQ(superblocks, 62 + 2);
  EXPECT_GT(writes, 500);
  EXPECT_GT(torn, 50);
}

// Also the columns that a reader looks at for the first time long after it has opened the file.
TEST_F(Hdf5AppenderTest, UsesNoSpaceAgainThatAReaderMayLookAt) {
  Hdf5Appender file(path_, false, {}, SmallColumns());
  file.SetGrace(std::chrono::nanoseconds(0));
  const auto commit = [&](uint64_t times) {
    for (uint64_t i = 0; i < times; ++i) {
      AppendRows(file, 1, 3);
      file.Commit();
    }
  };
  constexpr uint64_t kRows = 100;
  commit(kRows);
  uintmax_t idle = 0;
  {
    const Hdf5File reader = Hdf5File::Open(path_);
    commit(200);
    EXPECT_EQ(reader.Shape("group/text"), std::vector<uint64_t>{kRows});
    const auto texts = reader.ReadText("group/text", 0, kRows);
    const auto lists = reader.ReadInt32Lists("group/list", 0, kRows);
    std::vector<int32_t> flat(3 * kRows);
    reader.Read<int32_t>("flat", 0, flat);
    for (uint64_t i = 0; i < kRows; ++i) {
      ASSERT_EQ(texts[i], TextValue(i)) << i;
      ASSERT_EQ(lists[i], ListValue(i)) << i;
    }
    for (uint64_t i = 0; i < flat.size(); ++i) ASSERT_EQ(flat[i], FlatValue(i)) << i;
    idle = std::filesystem::file_size(path_);
  }
  // What the reader kept is used now: 10 commits of metadata alone, which take no new space.
  for (int i = 0; i < 10; ++i) file.Commit();
  EXPECT_EQ(std::filesystem::file_size(path_), idle);
  ExpectRows(path_, 300, 900);
}

TEST_F(Hdf5AppenderTest, RefusesAnExistingFileUnlessToldOtherwise) {
  { Hdf5Appender file(path_, false, {}, SmallColumns()); }
  try {
    Hdf5Appender file(path_, false, {}, SmallColumns());
    FAIL() << "overwrote";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(path_.string() + ": exists already"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("--overwrite"), std::string::npos);
  }
  {
    Hdf5Appender file(path_, true, {}, SmallColumns());
    AppendRows(file, 3, 4);
    file.Close();
  }
  ExpectRows(path_, 3, 4);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), 1);
  EXPECT_THROW(Hdf5Appender(directory_, true, {}, SmallColumns()), Error);
}

TEST_F(Hdf5AppenderTest, NamesThePathThatCannotBeCreated) {
  const auto missing = directory_ / "missing" / "file.h5";
  try {
    Hdf5Appender file(missing, false, {}, SmallColumns());
    FAIL() << "created";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()),
              missing.string() + ": cannot be created: No such file or directory");
  }
}

TEST_F(Hdf5AppenderTest, FailedWriteKeepsTheLastCommitAndRefusesMore) {
  Hdf5Appender file(path_, false, {}, SmallColumns());
  AppendRows(file, 3, 40);
  file.Commit();
  int left = 3;
  file.SetWriteHook([&](uint64_t, std::span<const uint8_t>) {
    if (left-- == 0) throw Error("injected");
  });
  AppendRows(file, 30, 400);
  EXPECT_THROW(file.Commit(), Error);
  ExpectRows(path_, 3, 40);
  file.SetWriteHook(nullptr);
  EXPECT_THROW(file.Commit(), Error);
  EXPECT_THROW(AppendRows(file, 1, 1), Error);
  EXPECT_THROW(file.Close(), Error);
  ExpectRows(path_, 3, 40);
}

TEST_F(Hdf5AppenderTest, TypesAreThoseOfTheLibrary) {
  std::vector<Hdf5Appender::Column> columns = {{"b", ElementType::kBool, {}, 8},
                                               {"i32", ElementType::kInt32, {}, 8},
                                               {"i64", ElementType::kInt64, {}, 8},
                                               {"u64", ElementType::kUInt64, {}, 8},
                                               {"f32", ElementType::kFloat32, {}, 8},
                                               {"f64", ElementType::kFloat64, {}, 8},
                                               {"e", ElementType::kEnum, {"x", "yyyyyyyy"}, 8}};
  Hdf5Appender(path_, false, {}, columns).Close();
  const hid_t file = H5Fopen(path_.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const auto expect_type = [&](const char* name, hid_t expected) {
    const hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
    const hid_t type = H5Dget_type(dataset);
    EXPECT_GT(H5Tequal(type, expected), 0) << name;
    H5Tclose(type);
    H5Dclose(dataset);
  };
  expect_type("i32", H5T_STD_I32LE);
  expect_type("i64", H5T_STD_I64LE);
  expect_type("u64", H5T_STD_U64LE);
  expect_type("f32", H5T_IEEE_F32LE);
  expect_type("f64", H5T_IEEE_F64LE);
  const hid_t kinds = H5Tenum_create(H5T_STD_U8LE), flags = H5Tenum_create(H5T_STD_I8LE);
  const uint8_t codes[] = {0, 1};
  H5Tenum_insert(kinds, "x", &codes[0]);
  H5Tenum_insert(kinds, "yyyyyyyy", &codes[1]);
  expect_type("e", kinds);
  H5Tenum_insert(flags, "FALSE", &codes[0]);
  H5Tenum_insert(flags, "TRUE", &codes[1]);
  expect_type("b", flags);
  H5Tclose(kinds);
  H5Tclose(flags);
  H5Fclose(file);
}

// Test vectors of lookup3.c's own self-test.
TEST(Hdf5Format, ChecksumIsLookup3) {
  EXPECT_EQ(hdf5::Checksum({}), 0xDEADBEEFu);
  const std::string text = "Four score and seven years ago";
  EXPECT_EQ(hdf5::Checksum({reinterpret_cast<const uint8_t*>(text.data()), text.size()}),
            0x17770551u);
}

}  // namespace
}  // namespace rollcast
