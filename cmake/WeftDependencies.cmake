# What weft rests on, gathered in weft::deps; docs/dependencies.md says why each is there.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(LIBFABRIC REQUIRED IMPORTED_TARGET libfabric>=1.17)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc>=2.9)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET openblas)
find_package(dnnl REQUIRED)

add_library(weft_deps INTERFACE)
target_link_libraries(weft_deps INTERFACE PkgConfig::LIBFABRIC PkgConfig::HWLOC PkgConfig::SODIUM PkgConfig::OPENBLAS
  DNNL::dnnl Threads::Threads m)
add_library(weft::deps ALIAS weft_deps)
