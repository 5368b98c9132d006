#include "trainer_bridge/chunk_grid.h"

#include <gtest/gtest.h>

namespace rollcast {
namespace {

TEST(ChunkGrid, CutsInOrderAndPacksSmallTensorsTogether) {
  const std::vector<size_t> sizes = {100, 0, 300, 1200, 256};
  const std::vector<Chunk> chunks = CutIntoChunks(sizes, 1024);
  struct Expected {
    size_t chunk, tensor, offset, bytes, place;
  };
  const std::vector<Expected> expected = {{0, 0, 0, 100, 0},
                                          {0, 2, 0, 300, 256},
                                          {0, 3, 0, 256, 768},
                                          {1, 3, 256, 944, 0},
                                          {2, 4, 0, 256, 0}};
  size_t i = 0;
  for (size_t c = 0; c < chunks.size(); ++c)
    for (const ChunkPiece& piece : chunks[c]) {
      ASSERT_LT(i, expected.size());
      EXPECT_EQ(c, expected[i].chunk);
      EXPECT_EQ(piece.tensor, expected[i].tensor);
      EXPECT_EQ(piece.offset, expected[i].offset);
      EXPECT_EQ(piece.bytes, expected[i].bytes);
      EXPECT_EQ(piece.place, expected[i].place);
      ++i;
    }
  EXPECT_EQ(i, expected.size());
  EXPECT_TRUE(CutIntoChunks(std::vector<size_t>{0, 0}, 256).empty());
}

TEST(ChunkGrid, EachRunTakesEightTimesTheBytesOfTheOneBefore) {
  const std::vector<size_t> sizes = {10, 0, 90, 150, 649, 1, 6399, 1, 5};
  // 100, 800, 6400 and the rest.
  EXPECT_EQ(GrowingRuns(sizes, 100), (std::vector<size_t>{3, 6, 8, 9}));
  EXPECT_EQ(GrowingRuns(sizes, 1), (std::vector<size_t>{1, 3, 4, 5, 7, 9}));
  EXPECT_EQ(GrowingRuns(sizes, 100000), (std::vector<size_t>{9}));
  // The next aim is eight times the aim, not eight times what the run had.
  EXPECT_EQ(GrowingRuns(std::vector<size_t>{500, 8, 64, 3}, 1), (std::vector<size_t>{1, 2, 3, 4}));
  EXPECT_TRUE(GrowingRuns({}, 1).empty());
}

}  // namespace
}  // namespace rollcast
