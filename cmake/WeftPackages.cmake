# Debian packages, by cpack in the build folder or by the target package:
#
#   libweft0    libweft.so      libweft-dev  headers, the static library, libweft_sim.so, .pc, CMake
#   weft-tools  programs        weft-doc     pages, examples
#   python3-weft  the Python package, if the build has python3-cffi
#
# The packages of a WEFT_RPC_ONLY build have the same names, and "+rpc" in their version. So apt replaces one set by the
# other, and no package is installed beside one of the other set.
#
# A package takes files by their paths (Packages.cmake.in). So a new file needs no rule here, and no file is in two
# packages or in none.
# Configured with CMAKE_INSTALL_PREFIX=/usr, the libraries lie in Debian's folder of the architecture, and programs have
# no rpath.
find_program(WEFT_DPKG_SHLIBDEPS dpkg-shlibdeps)
mark_as_advanced(WEFT_DPKG_SHLIBDEPS)
if(NOT WEFT_DPKG_SHLIBDEPS)
  message(STATUS "There is no dpkg-shlibdeps (Debian's dpkg-dev): cpack makes no packages")
  return()
endif()

# Before the release of a version its packages are older than the release's.
set(version ${PROJECT_VERSION})
file(STRINGS CHANGELOG.md unreleased REGEX "^## ${PROJECT_VERSION} \\(not released yet\\)")
if(unreleased)
  string(APPEND version "~dev")
endif()
set(static libfabric-dev libhwloc-dev libsodium-dev) # what programs need that link the static library
if(WEFT_RPC_ONLY)
  string(APPEND version "+rpc")
else()
  list(APPEND static libdnnl-dev libcjson-dev)
endif()

# Debian's tools refuse a package without a maintainer: the person who builds it.
set(maintainer "${WEFT_MAINTAINER}")
if(maintainer STREQUAL "" AND NOT "$ENV{DEBEMAIL}" STREQUAL "")
  set(maintainer "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
elseif(maintainer STREQUAL "")
  set(maintainer "unknown <unknown@localhost>")
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME weft)
set(CPACK_PACKAGE_VENDOR weft)
set(CPACK_PACKAGE_CONTACT "${maintainer}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_PACKAGE_VERSION ${version})
set(CPACK_DEBIAN_PACKAGE_SOURCE weft)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})

# Staged once, before the packages take their files.
configure_file(cmake/Packages.cmake.in Packages.cmake @ONLY)
set(CPACK_INSTALL_SCRIPTS ${CMAKE_CURRENT_BINARY_DIR}/Packages.cmake)

# weft_package(NAME SECTION SUMMARY LINES... [LIBRARY name] [SHLIBS] [ALL] [DEPENDS d...] [SUGGESTS s...])
#   LINES: the description, each at most 79 wide; LIBRARY: of this shared library; SHLIBS: dpkg-shlibdeps adds what it
#   needs; ALL: for every architecture
function(weft_package name section summary)
  cmake_parse_arguments(P "SHLIBS;ALL" "LIBRARY" "DEPENDS;SUGGESTS" ${ARGN})
  install(CODE "set(weft_package ${name})\ninclude(\"${CMAKE_CURRENT_BINARY_DIR}/Packages.cmake\")"
    COMPONENT ${name} EXCLUDE_FROM_ALL)
  string(TOUPPER ${name} upper)
  foreach(relation DEPENDS SUGGESTS)
    list(JOIN P_${relation} ", " packages)
    set(CPACK_DEBIAN_${upper}_PACKAGE_${relation} "${packages}" PARENT_SCOPE)
  endforeach()
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name} PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section} PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_SHLIBDEPS ${P_SHLIBS} PARENT_SCOPE)
  if(P_ALL)
    set(CPACK_DEBIAN_${upper}_PACKAGE_ARCHITECTURE all PARENT_SCOPE)
  endif()
  # Not by CPack, which runs `file` on each file of all packages for it. `=`: before 1.0 a new version may change the ABI.
  if(P_LIBRARY)
    set(control ${CMAKE_CURRENT_BINARY_DIR}/packages_control/${name})
    file(WRITE ${control}/shlibs "${P_LIBRARY} ${weft_soversion} ${name} (= ${version})\n")
    file(WRITE ${control}/triggers "activate-noawait ldconfig\n")
    set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA ${control}/shlibs ${control}/triggers PARENT_SCOPE)
  endif()
  list(JOIN P_UNPARSED_ARGUMENTS "\n" lines)
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${summary}\n${lines}" PARENT_SCOPE)
  set(CPACK_COMPONENTS_ALL ${CPACK_COMPONENTS_ALL} ${name} PARENT_SCOPE)
endfunction()

set(about "weft is a C library for programs that train or serve models across" "processes and nodes.")
set(has "This package has libweft: calls, tensors, process groups, autograd, modules,"
  "optimizers and parameter servers.")
if(WEFT_RPC_ONLY)
  set(has "This package has a smaller libweft: calls, tensors and process groups.")
else()
  set(loaded libopenblas0) # loaded at run time, by the first matrix product
endif()
set(library "libweft${weft_soversion} (= ${version})")
weft_package(libweft${weft_soversion} libs "remote calls that carry tensors, on libfabric" ${about}
  ${has} LIBRARY libweft SHLIBS DEPENDS ${loaded}
  SUGGESTS libpmix2 libcuda1) # loaded at run time: under a PMIx launcher, where there is a GPU
weft_package(libweft-dev libdevel "remote calls and parameter servers in C (development files)" ${about}
  "This package has the headers, the files for pkg-config and CMake, the static"
  "library (to link that, install the suggested packages too), libweft_sim,"
  "which runs jobs in simulated time, and the Fortran module."
  DEPENDS ${library} "libc6-dev | libc-dev" SUGGESTS weft-doc pkgconf ${static})
weft_package(weft-tools net "programs of the weft library" ${about}
  "This package has its programs, such as weft-info (what weft finds on this"
  "machine) and weft-perf (latency and bandwidth)." SHLIBS
  # weft-trace is in Python; weft-perf --peers runs PyTorch
  DEPENDS ${library} python3 SUGGESTS python3-torch)
if(TARGET weft_python)
  weft_package(python3-weft python "remote calls that carry tensors (Python 3)" ${about}
    "This package has the Python package weft: processes in Python take part in"
    "jobs, with arrays of NumPy and PyTorch." ALL
    DEPENDS ${library} python3 python3-cffi-backend SUGGESTS python3-numpy python3-torch weft-tools)
  set(control ${CMAKE_CURRENT_BINARY_DIR}/packages_control/python3-weft) # as dh_python3 writes them
  file(WRITE ${control}/postinst "#!/bin/sh\nset -e\n[ \"$1\" != configure ] || py3compile -p python3-weft\n")
  file(WRITE ${control}/prerm "#!/bin/sh\nset -e\npy3clean -p python3-weft\n")
  file(CHMOD ${control}/postinst ${control}/prerm PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ
    GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  set(CPACK_DEBIAN_PYTHON3-WEFT_PACKAGE_CONTROL_EXTRA ${control}/postinst ${control}/prerm)
endif()
weft_package(weft-doc doc "documentation and examples of the weft library" ${about}
  "This package has the pages, and the examples as sources with a Makefile." ALL
  SUGGESTS libweft-dev zlib1g-dev libcjson-dev)

include(CPack)
