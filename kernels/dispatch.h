// Which kernel an op takes: ordered tables of named kernels, each with the conditions under which
// it is right and pays.
//
// A family defines its own axes, a plain struct of what its conditions look at, so a table can be
// asked on a host that has not got the device.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/check.h"

namespace rollcast {

/// One demand on the axes of a family.
template <class Axes>
struct Condition {
  bool (*holds)(const Axes& axes);
  std::string (*failure)(const Axes& axes);  // expected and actual, where it does not hold
};

/// A row of a table.
template <class Axes>
struct Spec {
  std::string name;
  std::vector<Condition<Axes>> conditions;  // all must hold
};

/// A kernel that was not taken, and why.
struct PassedOver {
  std::string kernel, reason;
};

/// "invariant": the table; every kernel in it keeps the bit contract. "fastest": tables may have
/// kernels of their own for it; none has yet. "reference": the last of each table, the plainest.
enum class Profile { kInvariant, kFastest, kReference };

/// Throws Error unless it is one of the three names.
Profile ParseProfile(std::string_view name);

/// The kernels for one op, best first; the last is the plainest. Immutable.
template <class Axes>
class OpFamily {
 public:
  /// `op` is its key in [kernels].
  OpFamily(std::string op, std::vector<Spec<Axes>> specs)
      : op_(std::move(op)), specs_(std::move(specs)) {
    RC_CHECK(!specs_.empty());
  }

  const std::string& op() const { return op_; }
  const std::string& name(int kernel) const { return specs_[kernel].name; }
  int size() const { return static_cast<int>(specs_.size()); }

  /// The place of `name` in the table. Throws Error that lists the table.
  int Find(std::string_view name) const {
    std::string known;
    for (int i = 0; i < size(); ++i) {
      if (specs_[i].name == name) return i;
      known += StrCat(i == 0 ? "" : ", ", specs_[i].name);
    }
    throw Error(StrCat("kernels.", op_, ": this device has no kernel \"", name, "\"; it has ",
                       known, " (auto = the first that fits)"));
  }

  bool Fits(int kernel, const Axes& axes) const { return Failed(kernel, axes) == nullptr; }
  /// The first condition of a kernel that does not hold, in words; empty when it fits.
  std::string WhyNot(int kernel, const Axes& axes) const {
    const Condition<Axes>* failed = Failed(kernel, axes);
    return failed == nullptr ? "" : failed->failure(axes);
  }

 private:
  const Condition<Axes>* Failed(int kernel, const Axes& axes) const {
    for (const Condition<Axes>& condition : specs_[kernel].conditions)
      if (!condition.holds(axes)) return &condition;
    return nullptr;
  }

  std::string op_;
  std::vector<Spec<Axes>> specs_;
};

/// A family and what the user asked of it. The family must outlive it.
template <class Axes>
class KernelChoice {
 public:
  /// `name` is a kernel, or "auto"; it goes before the profile. Throws Error when the family has no
  /// such kernel.
  KernelChoice(const OpFamily<Axes>& family, Profile profile, std::string_view name)
      : family_(&family) {
    if (name != "auto") {
      fixed_ = family.Find(name);
      asked_ = StrCat("kernels.", family.op(), " = ", name);
    } else if (profile == Profile::kReference) {
      fixed_ = family.size() - 1;
      asked_ = StrCat("kernels.profile = reference: ", family.op(), " by ", family.name(fixed_));
    }
  }

  /// The first kernel of the table that fits, or the one asked for, strictly: throws Error with the
  /// condition that failed. Allocates nothing otherwise.
  int Choose(const Axes& axes) const {
    if (fixed_ >= 0) {
      if (family_->Fits(fixed_, axes)) return fixed_;
      throw Error(StrCat(asked_, ": ", family_->WhyNot(fixed_, axes)));
    }
    for (int i = 0; i < family_->size(); ++i)
      if (family_->Fits(i, axes)) return i;
    std::string reasons;
    for (const PassedOver& p : PassedOverFor(family_->size(), axes))
      reasons += StrCat("; ", p.kernel, ": ", p.reason);
    throw Error(StrCat(family_->op(), ": no kernel fits", reasons));
  }

  /// Whether some axes can lead to `kernel`.
  bool MayTake(int kernel) const { return fixed_ < 0 || fixed_ == kernel; }

  /// Why each kernel before `chosen` was not taken.
  std::vector<PassedOver> PassedOverFor(int chosen, const Axes& axes) const {
    std::vector<PassedOver> out;
    for (int i = 0; i < chosen; ++i) {
      const std::string reason = family_->WhyNot(i, axes);
      out.push_back({family_->name(i), reason.empty() ? asked_ : reason});
    }
    return out;
  }

 private:
  const OpFamily<Axes>* family_;
  int fixed_ = -1;     // place of the kernel asked for
  std::string asked_;  // by what, for messages
};

/// "linear=wgmma,attention=whole" as (op, kernel) pairs, in order; empty text: none. Throws Error
/// that starts with `name` for anything else: an op that has no families, one given twice, no
/// kernel.
std::vector<std::pair<std::string, std::string>> ParseOps(std::string_view text,
                                                          std::string_view name);

}  // namespace rollcast
