# What weft rests on, gathered in weft_deps; docs/dependencies.md says why each is there.
#
# weft.pc repeats the same libraries for static linking: WEFT_PRIVATE_LIBS is that list, as linker flags.
# Seen by the project that weft may be a part of: it links weft::weft_static, which names them.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
find_package(Threads REQUIRED)
add_library(weft_deps INTERFACE)
target_link_libraries(weft_deps INTERFACE Threads::Threads m)
set(WEFT_PRIVATE_LIBS "")

if(NOT WEFT_GPU_ONLY)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(LIBFABRIC REQUIRED IMPORTED_TARGET GLOBAL libfabric>=1.17)
  pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET GLOBAL hwloc>=2.9)
  pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET GLOBAL libsodium)
  pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET GLOBAL openblas)
  find_package(OneDNN 2.6 REQUIRED)
  target_link_libraries(weft_deps INTERFACE PkgConfig::LIBFABRIC PkgConfig::HWLOC PkgConfig::SODIUM
    PkgConfig::OPENBLAS OneDNN::dnnl)
  list(APPEND WEFT_PRIVATE_LIBS ${LIBFABRIC_LDFLAGS} ${HWLOC_LDFLAGS} ${SODIUM_LDFLAGS} ${OPENBLAS_LDFLAGS} -ldnnl)
endif()
list(APPEND WEFT_PRIVATE_LIBS -lpthread -lm)

# Of the programs alone: PkgConfig::CJSON (reports), PkgConfig::ZLIB (data sets).
if(NOT WEFT_GPU_ONLY AND (WEFT_EXAMPLES OR WEFT_PERF OR WEFT_TESTS))
  pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET GLOBAL libcjson)
  pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET GLOBAL zlib)
endif()
