#include "rollout/hdf5.h"

#include <hdf5.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <system_error>

namespace rollcast {

namespace {

static_assert(sizeof(hid_t) == sizeof(int64_t));

constexpr uint64_t kChunkElements = 1 << 16;

template <herr_t (*kClose)(hid_t)>
int CloseWith(int64_t id) {
  return kClose(id);
}

Hdf5Handle File(hid_t id) { return {id, CloseWith<H5Fclose>}; }
Hdf5Handle Dataset(hid_t id) { return {id, CloseWith<H5Dclose>}; }
Hdf5Handle Space(hid_t id) { return {id, CloseWith<H5Sclose>}; }
Hdf5Handle Type(hid_t id) { return {id, CloseWith<H5Tclose>}; }
Hdf5Handle Attribute(hid_t id) { return {id, CloseWith<H5Aclose>}; }
Hdf5Handle Properties(hid_t id) { return {id, CloseWith<H5Pclose>}; }

template <class T>
hid_t NativeType() {
  if constexpr (std::is_same_v<T, int8_t>) return H5T_NATIVE_INT8;
  if constexpr (std::is_same_v<T, uint8_t>) return H5T_NATIVE_UINT8;
  if constexpr (std::is_same_v<T, int32_t>) return H5T_NATIVE_INT32;
  if constexpr (std::is_same_v<T, int64_t>) return H5T_NATIVE_INT64;
  if constexpr (std::is_same_v<T, uint64_t>) return H5T_NATIVE_UINT64;
  if constexpr (std::is_same_v<T, float>) return H5T_NATIVE_FLOAT;
  if constexpr (std::is_same_v<T, double>) return H5T_NATIVE_DOUBLE;
}

Hdf5Handle TextType() {
  Hdf5Handle type = Type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

// The reason within an entry of the error stack. The one of a failed system call goes on to list
// time, descriptor and buffer, over several lines: "file write failed: time = ...\n, ... errno =
// 28, error message = 'No space left on device', buf = ...".
std::string Reason(const std::string& text) {
  constexpr std::string_view kMessage = "error message = '";
  const size_t message = text.find(kMessage), end = text.find('\'', message + kMessage.size());
  if (message == std::string::npos || end == std::string::npos)
    return text.substr(0, text.find('\n'));
  const size_t begin = message + kMessage.size();
  return StrCat(text.substr(0, text.find(": ")), ": ", text.substr(begin, end - begin));
}

// The innermost entry of the error stack that says something.
std::string LastError() {
  std::string text;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, const H5E_error2_t* error, void* data) -> herr_t {
        auto& text = *static_cast<std::string*>(data);
        if (text.empty() && error->desc != nullptr) text = error->desc;
        return 0;
      },
      &text);
  H5Eclear2(H5E_DEFAULT);
  return text.empty() ? "no reason given by the HDF5 library" : Reason(text);
}

Hdf5Handle AccessProperties() {
  // A file whose last flush failed (a full disk) stays in the library's list of open ones when it
  // is closed, and closing it once more at the end of the process is a crash within the library.
  // Here every identifier has an owner, so nothing is left for that end. Must precede all other
  // calls.
  [[maybe_unused]] static const herr_t no_exit_handler = H5dont_atexit();
  // What fails is thrown with the library's reason; its own printing would only double it.
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  Hdf5Handle properties = Properties(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_file_locking(properties.get(), false, true);
  return properties;
}

// What a writer of the file open in `fd` changes with every commit: its first block and its size.
std::string StateOf(int fd) {
  char block[64] = {};
  struct stat status = {};
  if (::pread(fd, block, sizeof(block), 0) < 0 || ::fstat(fd, &status) != 0) return {};
  return StrCat(std::string_view(block, sizeof(block)), status.st_size);
}

// Memory and file selections of elements [begin, begin + count), or of everything.
struct Selection {
  Hdf5Handle file, memory;
};

// False when the range does not fit.
bool Select(const Hdf5Handle& dataset, uint64_t begin, uint64_t count, Selection& selection) {
  selection.file = Space(H5Dget_space(dataset.get()));
  const hssize_t size = H5Sget_simple_extent_npoints(selection.file.get());
  if (size < 0 || begin > static_cast<uint64_t>(size) ||
      count > static_cast<uint64_t>(size) - begin)
    return false;
  const hsize_t start = begin, extent = count;
  selection.memory = Space(H5Screate_simple(1, &extent, nullptr));
  const bool everything = begin == 0 && count == static_cast<uint64_t>(size);
  if (everything) return true;
  return H5Sget_simple_extent_ndims(selection.file.get()) == 1 &&
         H5Sselect_hyperslab(selection.file.get(), H5S_SELECT_SET, &start, nullptr, &extent,
                             nullptr) >= 0;
}

}  // namespace

void Hdf5File::Fail(const std::string& what) const {
  throw Hdf5Error(StrCat(path_.string(), ": ", what, ": ", LastError()));
}

Hdf5File Hdf5File::Open(const std::filesystem::path& path) {
  const Hdf5Handle access = AccessProperties();
  // The library asks for the file's size and then reads how long it ought to be; when a writer has
  // appended between the two, it takes the file for truncated. It may also read the first block
  // while that is written, or the name may be given to another file.
  constexpr int kTries = 100;
  for (int attempt = 1;; ++attempt) {
    ReaderMark mark(path);
    const std::string state = StateOf(mark.fd());
    Hdf5File file(path, File(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get())));
    const bool opened = file.file_.get() >= 0, same = mark.IsOn(path);
    if (opened && same) {
      file.read_mark_ = std::move(mark);
      return file;
    }
    if (!opened && (attempt == kTries || (same && StateOf(mark.fd()) == state)))
      file.Fail("cannot be opened as an HDF5 file");
    if (attempt == kTries)
      throw Error(StrCat(path.string(), ": is replaced all the time by others; try again later"));
    H5Eclear2(H5E_DEFAULT);
  }
}

Hdf5File Hdf5File::Create(const std::filesystem::path& path, bool overwrite) {
  std::error_code error;
  if (!overwrite && std::filesystem::exists(path, error))
    throw Error(StrCat(path.string(),
                       ": exists already; name another file, or say --overwrite to replace it"));
  const Hdf5Handle access = AccessProperties();
  Hdf5File file(path, File(H5Fcreate(path.c_str(), overwrite ? H5F_ACC_TRUNC : H5F_ACC_EXCL,
                                     H5P_DEFAULT, access.get())));
  if (file.file_.get() < 0) file.Fail("cannot be created");
  return file;
}

bool Hdf5File::Has(const std::string& name) const {
  for (size_t end = name.find('/');; end = name.find('/', end + 1)) {
    if (H5Lexists(file_.get(), name.substr(0, end).c_str(), H5P_DEFAULT) <= 0) {
      H5Eclear2(H5E_DEFAULT);
      return false;
    }
    if (end == std::string::npos) return true;
  }
}

const Hdf5Handle& Hdf5File::OpenDataset(const std::string& name) const {
  const auto found = datasets_.find(name);
  if (found != datasets_.end()) return found->second;
  Hdf5Handle dataset = Dataset(H5Dopen2(file_.get(), name.c_str(), H5P_DEFAULT));
  if (dataset.get() < 0) Fail(StrCat("dataset \"", name, "\" cannot be opened"));
  return datasets_.emplace(name, std::move(dataset)).first->second;
}

std::vector<uint64_t> Hdf5File::Shape(const std::string& name) const {
  const Hdf5Handle& dataset = OpenDataset(name);
  const Hdf5Handle space = Space(H5Dget_space(dataset.get()));
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (rank < 0) Fail(StrCat("dataset \"", name, "\" has no shape"));
  std::vector<hsize_t> shape(rank);
  H5Sget_simple_extent_dims(space.get(), shape.data(), nullptr);
  return {shape.begin(), shape.end()};
}

template <class T>
void Hdf5File::Read(const std::string& name, uint64_t begin, std::span<T> out) const {
  const Hdf5Handle& dataset = OpenDataset(name);
  Selection selection;
  if (!Select(dataset, begin, out.size(), selection))
    Fail(StrCat("dataset \"", name, "\" has no elements [", begin, ", ", begin + out.size(), ")"));
  if (out.empty()) return;
  if (H5Dread(dataset.get(), NativeType<T>(), selection.memory.get(), selection.file.get(),
              H5P_DEFAULT, out.data()) < 0)
    Fail(StrCat("dataset \"", name, "\" cannot be read"));
}

std::vector<std::string> Hdf5File::ReadText(const std::string& name, uint64_t begin,
                                            uint64_t count) const {
  const Hdf5Handle& dataset = OpenDataset(name);
  Selection selection;
  if (!Select(dataset, begin, count, selection))
    Fail(StrCat("dataset \"", name, "\" has no elements [", begin, ", ", begin + count, ")"));
  std::vector<std::string> result(count);
  if (count == 0) return result;
  std::vector<char*> texts(count, nullptr);
  const Hdf5Handle type = TextType();
  if (H5Dread(dataset.get(), type.get(), selection.memory.get(), selection.file.get(), H5P_DEFAULT,
              texts.data()) < 0)
    Fail(StrCat("dataset \"", name, "\" cannot be read"));
  for (uint64_t i = 0; i < count; ++i)
    if (texts[i] != nullptr) result[i] = texts[i];
  H5Dvlen_reclaim(type.get(), selection.memory.get(), H5P_DEFAULT, texts.data());
  return result;
}

std::vector<std::vector<int32_t>> Hdf5File::ReadInt32Lists(const std::string& name, uint64_t begin,
                                                           uint64_t count) const {
  const Hdf5Handle& dataset = OpenDataset(name);
  Selection selection;
  if (!Select(dataset, begin, count, selection))
    Fail(StrCat("dataset \"", name, "\" has no elements [", begin, ", ", begin + count, ")"));
  std::vector<std::vector<int32_t>> result(count);
  if (count == 0) return result;
  std::vector<hvl_t> lists(count);
  const Hdf5Handle type = Type(H5Tvlen_create(H5T_NATIVE_INT32));
  if (H5Dread(dataset.get(), type.get(), selection.memory.get(), selection.file.get(), H5P_DEFAULT,
              lists.data()) < 0)
    Fail(StrCat("dataset \"", name, "\" cannot be read"));
  for (uint64_t i = 0; i < count; ++i) {
    const auto* values = static_cast<const int32_t*>(lists[i].p);
    result[i].assign(values, values + lists[i].len);
  }
  H5Dvlen_reclaim(type.get(), selection.memory.get(), H5P_DEFAULT, lists.data());
  return result;
}

template <class T>
void Hdf5File::Write(const std::string& name, std::span<const T> values,
                     const std::vector<uint64_t>& shape, bool compress) {
  uint64_t elements = 1;
  for (const uint64_t n : shape) elements *= n;
  RC_CHECK_EQ(elements, values.size(), name);
  const std::vector<hsize_t> dims(shape.begin(), shape.end());
  const Hdf5Handle space = Space(H5Screate_simple(static_cast<int>(dims.size()),
                                                  dims.empty() ? nullptr : dims.data(), nullptr));
  const Hdf5Handle links = Properties(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_create_intermediate_group(links.get(), 1);
  const Hdf5Handle creation = Properties(H5Pcreate(H5P_DATASET_CREATE));
  if (compress && elements > 0 && !dims.empty()) {
    // Whole rows of the last dimension as far as they fit, then as many of them as do.
    std::vector<hsize_t> chunk(dims);
    uint64_t room = kChunkElements;
    for (size_t i = chunk.size(); i-- > 0;) {
      chunk[i] = std::clamp<uint64_t>(room, 1, dims[i]);
      room /= chunk[i];
    }
    H5Pset_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data());
    H5Pset_shuffle(creation.get());
    H5Pset_deflate(creation.get(), 1);
  }
  const Hdf5Handle dataset =
      Dataset(H5Dcreate2(file_.get(), name.c_str(), NativeType<T>(), space.get(), links.get(),
                         creation.get(), H5P_DEFAULT));
  if (dataset.get() < 0) Fail(StrCat("dataset \"", name, "\" cannot be created"));
  if (elements > 0 &&
      H5Dwrite(dataset.get(), NativeType<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0)
    Fail(StrCat("dataset \"", name, "\" cannot be written"));
}

void Hdf5File::WriteText(const std::string& name, std::span<const std::string> values) {
  const hsize_t count = values.size();
  const Hdf5Handle space = Space(H5Screate_simple(1, &count, nullptr));
  const Hdf5Handle links = Properties(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_create_intermediate_group(links.get(), 1);
  const Hdf5Handle type = TextType();
  const Hdf5Handle dataset = Dataset(H5Dcreate2(file_.get(), name.c_str(), type.get(), space.get(),
                                                links.get(), H5P_DEFAULT, H5P_DEFAULT));
  if (dataset.get() < 0) Fail(StrCat("dataset \"", name, "\" cannot be created"));
  std::vector<const char*> texts;
  for (const std::string& value : values) texts.push_back(value.c_str());
  if (count > 0 &&
      H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, texts.data()) < 0)
    Fail(StrCat("dataset \"", name, "\" cannot be written"));
}

std::optional<std::string> Hdf5File::TextAttribute(const std::string& name) const {
  if (H5Aexists(file_.get(), name.c_str()) <= 0) return std::nullopt;
  const Hdf5Handle attribute = Attribute(H5Aopen(file_.get(), name.c_str(), H5P_DEFAULT));
  const Hdf5Handle type = TextType();
  char* text = nullptr;
  if (attribute.get() < 0 || H5Aread(attribute.get(), type.get(), &text) < 0)
    Fail(StrCat("attribute \"", name, "\" cannot be read as text"));
  std::string result = text == nullptr ? "" : text;
  H5free_memory(text);
  return result;
}

template <class T>
std::optional<T> Hdf5File::NumberAttribute(const std::string& name) const {
  if (H5Aexists(file_.get(), name.c_str()) <= 0) return std::nullopt;
  const Hdf5Handle attribute = Attribute(H5Aopen(file_.get(), name.c_str(), H5P_DEFAULT));
  T value{};
  if (attribute.get() < 0 || H5Aread(attribute.get(), NativeType<T>(), &value) < 0)
    Fail(StrCat("attribute \"", name, "\" cannot be read as a number"));
  return value;
}

std::optional<int64_t> Hdf5File::IntAttribute(const std::string& name) const {
  return NumberAttribute<int64_t>(name);
}
std::optional<uint64_t> Hdf5File::UIntAttribute(const std::string& name) const {
  return NumberAttribute<uint64_t>(name);
}

std::optional<bool> Hdf5File::FlagAttribute(const std::string& name) const {
  const std::optional<int8_t> flag = NumberAttribute<int8_t>(name);
  return flag ? std::optional<bool>(*flag != 0) : std::nullopt;
}

void Hdf5File::WriteAttribute(const std::string& name, const std::string& value) {
  const Hdf5Handle space = Space(H5Screate(H5S_SCALAR));
  const Hdf5Handle type = TextType();
  const Hdf5Handle attribute = Attribute(
      H5Acreate2(file_.get(), name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT));
  const char* text = value.c_str();
  if (attribute.get() < 0 || H5Awrite(attribute.get(), type.get(), &text) < 0)
    Fail(StrCat("attribute \"", name, "\" cannot be written"));
}

void Hdf5File::WriteAttribute(const std::string& name, int64_t value) {
  const Hdf5Handle space = Space(H5Screate(H5S_SCALAR));
  const Hdf5Handle attribute = Attribute(H5Acreate2(file_.get(), name.c_str(), H5T_NATIVE_INT64,
                                                    space.get(), H5P_DEFAULT, H5P_DEFAULT));
  if (attribute.get() < 0 || H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value) < 0)
    Fail(StrCat("attribute \"", name, "\" cannot be written"));
}

void Hdf5File::Flush() {
  if (H5Fflush(file_.get(), H5F_SCOPE_GLOBAL) < 0) Fail("cannot be written");
}

void Hdf5File::Close() {
  if (file_.get() < 0) return;
  datasets_.clear();
  Flush();
  if (file_.Close() < 0) Fail("cannot be closed");
}

#define RC_INSTANTIATE(T)                                                            \
  template void Hdf5File::Read<T>(const std::string&, uint64_t, std::span<T>) const; \
  template void Hdf5File::Write<T>(const std::string&, std::span<const T>,           \
                                   const std::vector<uint64_t>&, bool);
RC_INSTANTIATE(int8_t)
RC_INSTANTIATE(uint8_t)
RC_INSTANTIATE(int32_t)
RC_INSTANTIATE(int64_t)
RC_INSTANTIATE(uint64_t)
RC_INSTANTIATE(float)
RC_INSTANTIATE(double)
#undef RC_INSTANTIATE

}  // namespace rollcast
