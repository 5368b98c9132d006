#!/usr/bin/env python3
"""Reads every #include and fails on one that breaks the walls of the house (DESIGN section 1).

usage: includes.py [ROOT]       checks the tree
       includes.py --self-test  plants one violation of each kind and checks that it is caught
"""
import pathlib
import re
import sys
import tempfile

ROOMS = ["kernels", "engine", "rollout", "trainer_bridge", "launch"]

# Third-party headers and the rooms whose .cc files may include them.
HOMES = {
    r"nlohmann/": {"engine", "rollout", "trainer_bridge", "launch"},
    r"fmt/": {"engine", "rollout", "trainer_bridge", "launch"},
    r"(hdf5|hdf5_hl|H5\w+)\.h$": {"rollout"},
    r"boost/": {"rollout", "trainer_bridge"},
    r"pcre2\.h$": {"rollout"},
    r"zlib\.h$": {"rollout"},
    r"utf8proc\.h$": {"rollout"},
    r"xxhash\.h$": {"engine", "trainer_bridge"},
    r"mpi\.h$": {"trainer_bridge"},
    r"nccl\.h$": {"trainer_bridge"},
    r"spdlog/": {"launch"},
    r"toml\+\+/": {"launch"},
    r"CLI/": {"launch"},
    r"cblas\.h$": {"launch"},  # the reference trainer's step; never the engine
    r"prometheus/": {"launch", "trainer_bridge"},
    r"(gtest|gmock|benchmark)/": set(),  # tests only
}
CUDA = r"(cuda\w*|cublas\w*|curand\w*|cutlass|cute|mma)(\.h$|\.hpp$|/)|cooperative_groups|cub/"
SIMD = r"\w*mmintrin\.h$|(x86intrin|cpuid|arm_neon)\.h$"
# Of the C library and the kernel; anything else in <> without a dot is the C++ standard library.
SYSTEM = re.compile(
    r"(sys|linux|netinet|arpa)/\w+\.h$|"
    r"(unistd|fcntl|signal|poll|spawn|dlfcn|pthread|sched|dirent|termios|netdb|errno|time|"
    r"execinfo|malloc|stdint|stddef|stdbool|stdlib|string|stdio|math|limits|float)\.h$")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".inc", ".cpp", ".hpp", ".c"}


def includes(text):
    """(line number, quoted, name) of each include that is not in a block comment."""
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    for number, line in enumerate(text.split("\n"), 1):
        if match := INCLUDE.match(line):
            yield number, match.group(1) == '"', match.group(2)


def check(root):
    """All violations below root, as "path:line: what" lines."""
    faults = []
    users = {}  # header path -> rooms (or tests) whose files include it
    third_party = []  # (path, line, header) in headers
    graph = {}  # path -> project files it includes
    files = [p for top in ROOMS + ["tests"] for p in sorted((root / top).rglob("*"))
             if p.suffix in SUFFIXES and p.is_file() and "data" not in p.relative_to(root).parts[1:2]]
    for path in files:
        relative = path.relative_to(root)
        name, room = relative.as_posix(), relative.parts[0]
        in_cuda = name.startswith("kernels/cuda/")
        is_cu = path.suffix in {".cu", ".cuh"}
        is_header = path.suffix in {".h", ".cuh", ".hpp"}
        graph[name] = []

        def fault(line, what):
            faults.append(f"{name}:{line}: {what}")

        if is_cu and not in_cuda and room != "tests":
            fault(1, "CUDA sources belong in kernels/cuda")
        if path.suffix in {".cpp", ".hpp", ".c"} and not name.endswith("_c_api.c") and room != "tests":
            fault(1, "sources end in .cc and headers in .h")
        for line, quoted, header in includes(path.read_text(encoding="utf-8", errors="replace")):
            if quoted:
                target = header.split("/")[0]
                if not (root / header).is_file():
                    fault(line, f'"{header}" is no file below the repository root')
                    continue
                graph[name].append(header)
                users.setdefault(header, set()).add(room)
                if room == "tests":
                    continue
                if target not in ROOMS or ROOMS.index(target) > ROOMS.index(room):
                    fault(line, f'{room} must not include "{header}": only to the left in '
                                + " <- ".join(ROOMS))
                if is_cu and target != "kernels":
                    fault(line, f'a .cu file sees kernels headers only, not "{header}"')
                continue
            if re.match(CUDA, header):
                if not in_cuda and room != "tests":
                    fault(line, f"<{header}>: CUDA is included under kernels/cuda only")
                continue
            if re.match(SIMD, header):
                if room not in ("kernels", "tests"):
                    fault(line, f"<{header}>: vector instructions are at home in kernels")
                continue
            home = next((rooms for key, rooms in HOMES.items() if re.match(key, header)), None)
            if home is None:
                if "." in header or "/" in header:
                    if not SYSTEM.match(header):
                        fault(line, f"<{header}> has no home yet: add it to tests/checks/includes.py")
                continue
            if room == "tests":
                continue
            if room not in home:
                where = ", ".join(sorted(home)) or "tests"
                fault(line, f"<{header}> is at home in {where}, not in {room}")
            elif is_cu:
                fault(line, f"a .cu file sees the standard library and kernels headers, not <{header}>")
            elif is_header:
                third_party.append((name, line, header))

    # A header with a third-party include must stay within its room, however it is reached.
    for name, line, header in third_party:
        room, reached, todo = name.split("/")[0], set(), [name]
        while todo:
            current = todo.pop()
            for user, its in graph.items():
                if current in its and user not in reached:
                    reached.add(user)
                    todo.append(user)
        outside = sorted(u for u in reached if u.split("/")[0] not in (room, "tests"))
        if outside:
            faults.append(f"{name}:{line}: <{header}> in a header that {outside[0]} includes")
    return faults


PLANTED = [
    # (files, part of the fault that must be found; None = none)
    ({"engine/a.cc": '#include "kernels/k.h"\n#include <vector>\n#include <sys/mman.h>\n'}, None),
    ({"engine/a.cc": '// #include "launch/l.h"\n/*\n#include "launch/l.h"\n*/\n'}, None),
    ({"engine/a.cc": '#include "rollout/r.h"\n'}, "engine/a.cc:1: engine must not include"),
    ({"kernels/a.h": '#pragma once\n#include "engine/e.h"\n'}, "kernels/a.h:2: kernels must not"),
    ({"engine/a.cc": ' #  include "launch/l.h"\n'}, "engine/a.cc:1: engine must not include"),
    ({"rollout/a.cc": '#include "tests/t.h"\n'}, "rollout/a.cc:1: rollout must not include"),
    ({"engine/a.cc": '#include "missing.h"\n'}, "is no file below the repository root"),
    ({"engine/a.cc": '#include "e.h"\n'}, "is no file below the repository root"),
    ({"engine/a.cc": "#include <hdf5.h>\n"}, "<hdf5.h> is at home in rollout, not in engine"),
    ({"rollout/a.cc": "#include <hdf5.h>\n"}, None),
    ({"kernels/a.cc": "#include <fmt/format.h>\n"}, "not in kernels"),
    ({"launch/a.cc": "#include <gtest/gtest.h>\n"}, "is at home in tests, not in launch"),
    ({"engine/a.cc": "#include <odd/thing.h>\n"}, "<odd/thing.h> has no home yet"),
    ({"engine/a.cc": "#include <cuda_runtime.h>\n"}, "CUDA is included under kernels/cuda only"),
    ({"kernels/a.cc": "#include <cublas_v2.h>\n"}, "CUDA is included under kernels/cuda only"),
    ({"kernels/cuda/a.cu": "#include <cuda_runtime.h>\n#include \"kernels/k.h\"\n"}, None),
    ({"kernels/cuda/a.cu": "#include <nlohmann/json.hpp>\n"}, "not in kernels"),
    ({"engine/a.cu": "#include <vector>\n"}, "CUDA sources belong in kernels/cuda"),
    ({"engine/a.cc": "#include <immintrin.h>\n"}, "vector instructions are at home in kernels"),
    ({"kernels/cpu/a.cc": "#include <immintrin.h>\n"}, None),
    ({"rollout/a.h": "#include <nlohmann/json.hpp>\n", "rollout/b.cc": '#include "rollout/a.h"\n'},
     None),
    ({"rollout/a.h": "#include <nlohmann/json.hpp>\n", "launch/b.cc": '#include "rollout/a.h"\n'},
     "rollout/a.h:1: <nlohmann/json.hpp> in a header that launch/b.cc includes"),
    ({"rollout/a.h": "#include <nlohmann/json.hpp>\n", "rollout/b.h": '#include "rollout/a.h"\n',
      "launch/b.cc": '#include "rollout/b.h"\n'}, "in a header that launch/b.cc includes"),
    ({"tests/launch/a_test.cc": '#include <gtest/gtest.h>\n#include "launch/l.h"\n'}, None),
]


def self_test():
    failed = 0
    for files, expected in PLANTED:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            base = {f"{room}/{room[0]}.h": "#pragma once\n" for room in ROOMS}
            for name, text in {**base, "tests/t.h": "", **files}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            faults = check(root)
            good = any(expected in f for f in faults) if expected else not faults
            if not good:
                failed += 1
                print(f"planted {files}\n  expected {expected}\n  found {faults}")
    print(f"{len(PLANTED) - failed} passed, {failed} failed")
    return failed != 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    root = pathlib.Path(arguments[0] if arguments else ".").resolve()
    faults = check(root)
    for fault in faults:
        print(fault)
    return bool(faults)


sys.exit(main(sys.argv[1:]))
