# weft_sources(FILES...)          adds this folder's files to the library
# weft_program(NAME SOURCES...)   a program on the public headers, in bin/
# weft_test(NAME SOURCES... [TIMEOUT s] [LABELS l...] [ARGS a...] [SERIAL])
#     a cmocka test program `NAME`, run by CTest; exit 77 means skipped. LABELS threads: also run under ThreadSanitizer
#     by tools/check. SERIAL: nothing else runs beside it (it measures time, or needs all cores).
# weft_test_settings(NAME [TIMEOUT s] [LABELS l...] [SERIAL])
#     the same limits and environment for a test added with add_test().
#
# weft_objects holds every object file once; the shared, the static library and the tests are made of it. Tests link the
# static form, which keeps all symbols, so that they may reach into one folder of src/.
add_library(weft_objects OBJECT)
target_include_directories(weft_objects PUBLIC ${PROJECT_SOURCE_DIR}/include PRIVATE ${PROJECT_SOURCE_DIR}/src
  ${PROJECT_SOURCE_DIR}/providers)
target_link_libraries(weft_objects PUBLIC weft_deps PRIVATE weft_flags)
if(WEFT_GPU_ONLY) # what stands in for libraries that are not there
  target_include_directories(weft_objects BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/tools/gpu)
endif()

set(weft_include $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

add_library(weft_static STATIC $<TARGET_OBJECTS:weft_objects>)
target_include_directories(weft_static PUBLIC ${weft_include})
target_link_libraries(weft_static PUBLIC weft_deps)
set_target_properties(weft_static PROPERTIES OUTPUT_NAME weft LINKER_LANGUAGE C)
add_library(weft::weft_static ALIAS weft_static) # the package's names, for projects that add this folder

# Of a GPU-only tree there is no shared library: it would lack most of its own symbols.
#
# WEFT_LTO: its C files are compiled once more, for the linker to optimise as a whole: workers that share a core find little of
# it in the caches at each turn, so what a call does not touch counts (a quarter of its time outside the kernel). The static
# library does without, as what the compiler stores for that can only be read by the same compiler.
if(NOT WEFT_GPU_ONLY)
  if(WEFT_LTO)
    set(own $<FILTER:$<TARGET_PROPERTY:weft_objects,SOURCES>,INCLUDE,[.]c$>)
    add_library(weft SHARED ${own} $<FILTER:$<TARGET_OBJECTS:weft_objects>,INCLUDE,[.]cu[.]o$>)
    target_include_directories(weft PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/providers)
    target_compile_options(weft PRIVATE $<$<COMPILE_LANGUAGE:C>:-flto=auto>)
    set_target_properties(weft PROPERTIES EXPORT_COMPILE_COMMANDS OFF) # or clang-tidy reads each file twice
    target_link_options(weft PRIVATE -flto=auto -O3)
    target_link_libraries(weft PRIVATE weft_flags)
  else()
    add_library(weft SHARED $<TARGET_OBJECTS:weft_objects>)
  endif()
  add_library(weft::weft ALIAS weft)
  target_include_directories(weft PUBLIC ${weft_include})
  target_link_libraries(weft PRIVATE weft_deps)
  # The version script also hides what static libraries inside (cudart) would export; the library calls its own functions directly.
  set(map ${PROJECT_SOURCE_DIR}/cmake/weft.map)
  # All symbols are bound when it is loaded: binding at the first call leaves the caller's registers, and keys in them, on the stack.
  target_link_options(weft PRIVATE -Wl,--version-script=${map} -Wl,-Bsymbolic-functions -Wl,-z,now)
  set_target_properties(weft PROPERTIES SOVERSION ${PROJECT_VERSION_MAJOR} VERSION ${PROJECT_VERSION} LINKER_LANGUAGE C
    LINK_DEPENDS ${map})
  if(NOT WEFT_SANITIZE)
    target_link_options(weft PRIVATE -Wl,-z,defs)
  endif()
endif()

function(weft_sources)
  foreach(file ${ARGN})
    target_sources(weft_objects PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  endforeach()
endfunction()

function(weft_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE weft weft_flags Threads::Threads m)
endfunction()

# One thread each for OpenMP and OpenBLAS: tests run side by side, and a sanitizer does not see into their pools.
# IPATH_NO_BACKTRACE: a library under libfabric would catch a crash and write a file into the working folder.
# ASAN_OPTIONS: from gcc 13 on, what a function's variables hold lies beside the stack; LeakSanitizer would not find what the fibers of
# simulated workers hold that were killed.
set(weft_test_environment OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 IPATH_NO_BACKTRACE=1
  ASAN_OPTIONS=detect_stack_use_after_return=0
  LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tools/sanitizers/lsan.supp:print_suppressions=0
  TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tools/sanitizers/tsan.supp:second_deadlock_stack=1
  UBSAN_OPTIONS=print_stacktrace=1)

function(weft_test_settings name)
  cmake_parse_arguments(T "SERIAL" "TIMEOUT" "LABELS" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 60)
  endif()
  if(WEFT_SANITIZE)
    math(EXPR T_TIMEOUT "${T_TIMEOUT} * 3") # instrumented code is that much slower
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77 LABELS "${T_LABELS}"
    ENVIRONMENT "${weft_test_environment}")
  if(T_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

function(weft_test_program name)
  add_executable(${name} ${ARGN})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/providers
    ${PROJECT_SOURCE_DIR}/tests)
  target_compile_options(${name} PRIVATE -UNDEBUG) # a test's own assert() counts in every build
  target_link_libraries(${name} PRIVATE weft_static weft_flags)
  if(WEFT_GPU_ONLY) # no cmocka there: a small header stands in for it
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tools/gpu)
  else()
    target_link_libraries(${name} PRIVATE cmocka)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
endfunction()

function(weft_test name)
  if(WEFT_GPU_ONLY)
    return() # weft_cuda_test() alone counts there
  endif()
  cmake_parse_arguments(T "SERIAL" "TIMEOUT" "LABELS;ARGS" ${ARGN})
  weft_test_program(${name} ${T_UNPARSED_ARGUMENTS})
  add_test(NAME ${name} COMMAND ${name} ${T_ARGS})
  if(T_SERIAL)
    set(serial SERIAL)
  endif()
  weft_test_settings(${name} TIMEOUT ${T_TIMEOUT} LABELS ${T_LABELS} ${serial})
endfunction()
