# What weft rests on: weft_deps. docs/dependencies.md says why each is there.
#
# weft.pc repeats the same libraries for static linking: weft_private_libs is that list, as linker flags. The targets are
# seen by the project that weft may be a part of: it links weft::weft_static, which names them.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
find_package(Threads REQUIRED)
add_library(weft_deps INTERFACE)
set(weft_private_libs "")

if(NOT WEFT_GPU_ONLY)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(LIBFABRIC REQUIRED IMPORTED_TARGET GLOBAL libfabric>=1.17)
  pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET GLOBAL hwloc>=2.4)
  pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET GLOBAL libsodium)
  target_link_libraries(weft_deps INTERFACE PkgConfig::LIBFABRIC PkgConfig::HWLOC PkgConfig::SODIUM)
  list(APPEND weft_private_libs ${LIBFABRIC_LDFLAGS} ${HWLOC_LDFLAGS} ${SODIUM_LDFLAGS})
endif()
if(NOT WEFT_GPU_ONLY AND NOT WEFT_RPC_ONLY)
  pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET GLOBAL openblas)
  pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET GLOBAL libcjson>=1.7.13)
  find_package(OneDNN 2.6 REQUIRED)
  # Of OpenBLAS only the headers: it is loaded at run time (docs/decisions/080-openblas-is-loaded-late.md).
  target_include_directories(weft_deps INTERFACE $<BUILD_INTERFACE:${OPENBLAS_INCLUDE_DIRS}>)
  target_link_libraries(weft_deps INTERFACE OneDNN::dnnl PkgConfig::CJSON ${CMAKE_DL_LIBS})
  list(APPEND weft_private_libs -ldnnl ${CJSON_LDFLAGS})
endif()
target_link_libraries(weft_deps INTERFACE Threads::Threads m)
list(APPEND weft_private_libs -lpthread -lm)

# Of programs and tests: PkgConfig::CJSON (dumps), PkgConfig::ZLIB (data sets), and where MPI_C_FOUND MPI::MPI_C.
if(NOT WEFT_GPU_ONLY AND (WEFT_EXAMPLES OR WEFT_PERF OR WEFT_TESTS))
  pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET GLOBAL libcjson>=1.7.13)
  pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET GLOBAL zlib)
  if(NOT WEFT_SANITIZE) # MPI's own libraries are full of what sanitizers report
    find_package(MPI QUIET COMPONENTS C) # FindMPI of CMake 3.25 makes the target even where it finds nothing
  endif()
endif()
