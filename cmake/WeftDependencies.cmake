# What weft rests on: weft_rpc_deps for the component rpc, weft_deps for the rest. docs/dependencies.md says why each is there.
#
# The .pc files repeat the same libraries for static linking: weft_rpc_private_libs and weft_private_libs are those lists, as linker
# flags. Seen by the project that weft may be a part of: it links weft::weft_static, which names them.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
find_package(Threads REQUIRED)
add_library(weft_rpc_deps INTERFACE)
target_link_libraries(weft_rpc_deps INTERFACE Threads::Threads m)
set(weft_rpc_private_libs "")

if(NOT WEFT_GPU_ONLY)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(LIBFABRIC REQUIRED IMPORTED_TARGET GLOBAL libfabric>=1.17)
  pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET GLOBAL hwloc>=2.4)
  pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET GLOBAL libsodium)
  target_link_libraries(weft_rpc_deps INTERFACE PkgConfig::LIBFABRIC PkgConfig::HWLOC PkgConfig::SODIUM)
  list(APPEND weft_rpc_private_libs ${LIBFABRIC_LDFLAGS} ${HWLOC_LDFLAGS} ${SODIUM_LDFLAGS})
endif()
list(APPEND weft_rpc_private_libs -lpthread -lm)

if("weft" IN_LIST weft_parts)
  pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET GLOBAL openblas)
  pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET GLOBAL libcjson>=1.7.13)
  find_package(OneDNN 2.6 REQUIRED)
  add_library(weft_deps INTERFACE)
  target_link_libraries(weft_deps INTERFACE PkgConfig::OPENBLAS OneDNN::dnnl PkgConfig::SODIUM PkgConfig::CJSON Threads::Threads m)
  set(weft_private_libs ${OPENBLAS_LDFLAGS} -ldnnl ${SODIUM_LDFLAGS} ${CJSON_LDFLAGS} -lpthread -lm)
endif()

# Of programs and tests: PkgConfig::CJSON (dumps), PkgConfig::ZLIB (data sets), and where MPI_C_FOUND MPI::MPI_C.
if(NOT WEFT_GPU_ONLY AND (WEFT_EXAMPLES OR WEFT_PERF OR WEFT_TESTS))
  pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET GLOBAL libcjson>=1.7.13)
  pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET GLOBAL zlib)
  if(NOT WEFT_SANITIZE) # MPI's own libraries are full of what sanitizers report
    find_package(MPI QUIET COMPONENTS C) # FindMPI of CMake 3.25 makes the target even where it finds nothing
  endif()
endif()
