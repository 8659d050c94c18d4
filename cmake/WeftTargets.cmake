# weft_sources(FILES...)          adds this folder's files to the library
# weft_sim_sources(FILES...)      the same, to libweft_sim alone
# weft_kernels(FILES...)          the same, compiled for speed
# weft_program(NAME SOURCES...)   a program on the public headers, in bin/
# weft_test(NAME SOURCES... [LABELS l...] [ARGS a...] [SERIAL])
#     a cmocka test program `NAME`, run by CTest; exit 77 means skipped. LABELS threads: also run under ThreadSanitizer
#     by tools/check. SERIAL: nothing else runs beside it (it measures time, or needs all cores).
# weft_wrap(NAME FUNCTIONS...)    the test has its own form of these functions: __wrap_NAME, beside __real_NAME
# weft_test_settings(NAME [LABELS l...] [SERIAL] [PROGRAM])
#     the same limits and environment for a test added with add_test(). PROGRAM: it runs a program of several processes; one such
#     test runs at a time, beside others.
#
# libweft has its object files once, in weft_objects; its shared and its static form are made of these and of
# no_simulation.c. libweft_sim (shared) has weft_sim_objects in the place of that file. Tests reach into one folder of
# src/. So they link weft_tested, a shared library of all objects that exports all symbols: linking a test against it
# takes a tenth of the time of a static form. Tests that replace functions of the library (weft_wrap) link
# weft_tested_static.
#
# WEFT_LTO: a shared library's C files are compiled once more, for the linker to optimise as a whole: workers that share a core find little
# of it in the caches at each turn, so what a call does not touch counts (a quarter of its time outside the kernel). The static
# library does without, as what the compiler stores for that can only be read by the same compiler.
set(weft_include $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
set(weft_source_folders ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/providers)

add_library(weft_objects OBJECT)
target_include_directories(weft_objects PUBLIC ${PROJECT_SOURCE_DIR}/include PRIVATE ${weft_source_folders})
target_link_libraries(weft_objects PUBLIC weft_deps PRIVATE weft_flags)
set(weft_no_simulation ${PROJECT_SOURCE_DIR}/src/base/no_simulation.c)
if(WEFT_GPU_ONLY) # what stands in for libraries that are not there
  target_include_directories(weft_objects BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/tools/gpu)
endif()
if(WEFT_TESTS) # weft_tested exports them; libweft.so does not, because of its version script
  set_target_properties(weft_objects PROPERTIES C_VISIBILITY_PRESET protected)
endif()
add_library(weft_static STATIC $<TARGET_OBJECTS:weft_objects> ${weft_no_simulation})
target_include_directories(weft_static PUBLIC ${weft_include} PRIVATE ${weft_source_folders})
target_link_libraries(weft_static PUBLIC weft_deps PRIVATE $<BUILD_INTERFACE:weft_flags>)
set_target_properties(weft_static PROPERTIES OUTPUT_NAME weft LINKER_LANGUAGE C)
add_library(weft::weft_static ALIAS weft_static) # the package's names, for projects that add this folder
set(weft_tested weft_static) # what tests link
set(weft_tested_static weft_static)

if(NOT WEFT_GPU_ONLY) # of a GPU-only tree there is no shared library: it would lack most of its own symbols
  if(WEFT_LTO)
    add_library(weft SHARED $<FILTER:$<TARGET_PROPERTY:weft_objects,SOURCES>,INCLUDE,[.]c$> ${weft_no_simulation})
    target_compile_options(weft PRIVATE $<$<COMPILE_LANGUAGE:C>:-flto=auto>)
    set_target_properties(weft PROPERTIES EXPORT_COMPILE_COMMANDS OFF) # or clang-tidy reads each file twice
    target_link_options(weft PRIVATE -flto=auto -O3)
  else()
    add_library(weft SHARED $<TARGET_OBJECTS:weft_objects> ${weft_no_simulation})
  endif()
  add_library(weft_sim_objects OBJECT)
  target_include_directories(weft_sim_objects PUBLIC ${PROJECT_SOURCE_DIR}/include PRIVATE ${weft_source_folders})
  target_link_libraries(weft_sim_objects PUBLIC weft_deps PRIVATE weft_flags)
  add_library(weft_sim SHARED $<TARGET_OBJECTS:weft_objects> $<TARGET_OBJECTS:weft_sim_objects>)
  # They export weft_*, and call their own functions directly.
  # All symbols are bound when it is loaded: binding at the first call leaves the caller's registers, and keys in them,
  # on the stack. nodelete: dlclose leaves the library mapped, because its threads run until the process ends (executors
  # of the process, hwloc's loader).
  set(map ${PROJECT_SOURCE_DIR}/cmake/weft.map)
  foreach(library weft weft_sim)
    add_library(weft::${library} ALIAS ${library})
    target_include_directories(${library} PUBLIC ${weft_include} PRIVATE ${weft_source_folders})
    target_link_libraries(${library} PRIVATE weft_deps weft_flags)
    target_link_options(${library} PRIVATE -Wl,--version-script=${map} -Wl,-Bsymbolic-functions -Wl,-z,now
      -Wl,-z,nodelete)
    set_target_properties(${library} PROPERTIES SOVERSION ${weft_soversion} VERSION ${PROJECT_VERSION}
      LINKER_LANGUAGE C LINK_DEPENDS ${map})
    if(NOT WEFT_SANITIZE)
      target_link_options(${library} PRIVATE -Wl,-z,defs)
    endif()
  endforeach()
  if(WEFT_TESTS)
    set_target_properties(weft_sim_objects PROPERTIES C_VISIBILITY_PRESET protected)
    set(weft_tested weft_tested)
    set(weft_tested_static weft_tested_static)
    add_library(${weft_tested} SHARED EXCLUDE_FROM_ALL $<TARGET_OBJECTS:weft_objects> $<TARGET_OBJECTS:weft_sim_objects>)
    target_link_options(${weft_tested} PRIVATE -Wl,-z,now) # as the library itself
    add_library(${weft_tested_static} STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:weft_objects>
      $<TARGET_OBJECTS:weft_sim_objects>)
    foreach(library ${weft_tested} ${weft_tested_static})
      target_include_directories(${library} PUBLIC ${weft_include})
      target_link_libraries(${library} PUBLIC weft_deps)
      set_target_properties(${library} PROPERTIES LINKER_LANGUAGE C)
    endforeach()
  endif()
endif()

function(weft_sources)
  foreach(file ${ARGN})
    target_sources(weft_objects PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  endforeach()
endfunction()

function(weft_sim_sources)
  foreach(file ${ARGN})
    target_sources(weft_sim_objects PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  endforeach()
endfunction()

# The loops in these are written for the vectoriser; it needs no licence to reorder arithmetic, so it gets none.
set(weft_kernel_options -O3 -fno-math-errno -fno-trapping-math -ffp-contract=off)
function(weft_kernels)
  weft_sources(${ARGN})
  set_source_files_properties(${ARGN} TARGET_DIRECTORY weft_objects PROPERTIES
    COMPILE_OPTIONS "${weft_kernel_options}")
endfunction()

function(weft_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE weft weft_flags Threads::Threads m)
  target_compile_definitions(${name} PRIVATE $<$<BOOL:${WEFT_HAVE_CUDA}>:WEFT_HAVE_CUDA>)
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

# A sanitizer has to be the first library of a process.
if(NOT WEFT_SANITIZE AND NOT WEFT_GPU_ONLY)
  list(APPEND weft_test_environment LD_PRELOAD=${CMAKE_BINARY_DIR}/tests/libno_kernel_symbols.so)
endif()

# With a sanitizer these take about half of the time of all tests: tools/check runs them without one, tools/long.d/deep
# with both.
set(weft_deep_tests
  test_sim_fiber test_cartpole_crowd test_faults_groups test_faults_parallel test_faults_passes test_coll_large
  test_coll_values test_conformance_backward test_conformance_training test_host_conformance_calls
  test_host_conformance_faults test_host_net_long test_faults_kills test_net_footprint test_net_long test_nn_follow
  test_nn_resnet test_rdm_rxm_connect test_rdm_rxm_death test_rdm_rxm_idle test_rdm_rxm_kills test_rdm_rxm_strangers
  test_rdm_rxm_threads test_rdm_rxm_transfer test_rdm_shm_conformance_calls test_remote_many test_remote_state
  test_remote_training test_rendezvous_elastic test_rpc_answers test_rpc_elastic test_rpc_parts test_rpc_rref_faults
  test_rpc_trace test_spawn_job test_faults_calls weft_info weft_perf weft_run_output weft_run_secret weft_run_success weft_run_launchers
  weft_run_terminal weft_run_usage weft_run_weft weft_run_weft_elastic weft_trace)

# The same with ThreadSanitizer alone.
set(weft_deep_threads test_conformance_faults test_conformance_passes test_conformance_rrefs test_dist_hostile test_host_transfer
  test_net_again test_ofi_transfer test_remote_models test_rpc_agents test_rpc_batch_ends test_rpc_batch_waits test_rpc_budget
  test_rpc_large_meta test_rpc_misuse test_rpc_registers test_rpc_remapped test_conformance_waiting)

if(WEFT_TESTS)
  add_custom_target(weft_deep_tests) # with a sanitizer: builds the programs of these tests, which `all` leaves out
endif()

# weft_is_deep(OUT NAME LABELS...)
function(weft_is_deep out name)
  set(${out} OFF PARENT_SCOPE)
  if(name IN_LIST weft_deep_tests AND (threads IN_LIST ARGN OR NOT WEFT_SANITIZE STREQUAL thread))
    set(${out} ON PARENT_SCOPE)
  elseif(name IN_LIST weft_deep_threads AND WEFT_SANITIZE STREQUAL thread)
    set(${out} ON PARENT_SCOPE)
  endif()
endfunction()

function(weft_test_settings name)
  cmake_parse_arguments(T "SERIAL;PROGRAM" "" "LABELS" ${ARGN})
  weft_is_deep(deep ${name} ${T_LABELS})
  if(deep)
    list(APPEND T_LABELS deep)
  endif()
  # The limit only stops a test that hangs: the machine may be busy, and instrumented code is slow.
  set_tests_properties(${name} PROPERTIES TIMEOUT 900 SKIP_RETURN_CODE 77 LABELS "${T_LABELS}"
    ENVIRONMENT "${weft_test_environment}")
  if(T_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
  if(T_PROGRAM)
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK programs)
  endif()
endfunction()

# Handlers, programs and callbacks have the parameters that their type asks for; few tests use them all. Linked after weft_flags.
add_library(weft_test_flags INTERFACE)
target_compile_options(weft_test_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-Wno-unused-parameter>)

include(CheckLinkerFlag)
check_linker_flag(C -fuse-ld=gold WEFT_QUICK_LINKER)

function(weft_test_compiled name)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/providers
    ${PROJECT_SOURCE_DIR}/tests)
  # A test's own assert() counts in every build. -fPIC: a program without it needs copies of data, and protected data has none.
  target_compile_options(${name} PRIVATE -UNDEBUG $<$<COMPILE_LANGUAGE:C>:-fPIC>)
  # A quarter of the compiler's time. The library that the test calls is compiled as users have it.
  target_compile_options(${name} PRIVATE "$<$<AND:$<COMPILE_LANGUAGE:C>,$<CONFIG:RelWithDebInfo>>:-O1;-g1>")
endfunction()

# Compiled once, for all tests that use them.
set(weft_test_parts rpc/world.c rpc/inside.c rpc/rref_counts.c rpc/rref_functions.c net/net_host.c net/inside.c
  net/net_bulk.c conformance/conformance.c)
function(weft_test_sources out)
  set(all)
  foreach(file ${ARGN})
    file(REAL_PATH ${file} path BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR}/tests ${path})
    if(path IN_LIST weft_test_parts AND NOT WEFT_GPU_ONLY)
      string(MAKE_C_IDENTIFIER part_${path} part)
      if(NOT TARGET ${part})
        add_library(${part} OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/${path})
        weft_test_compiled(${part})
        target_link_libraries(${part} PRIVATE ${weft_tested} weft_flags weft_test_flags cmocka)
      endif()
      set(file $<TARGET_OBJECTS:${part}>)
    endif()
    list(APPEND all ${file})
  endforeach()
  set(${out} ${all} PARENT_SCOPE)
endfunction()

function(weft_test_program name)
  weft_test_sources(sources ${ARGN})
  add_executable(${name} ${sources})
  weft_test_compiled(${name})
  target_link_libraries(${name} PRIVATE $<IF:$<BOOL:$<TARGET_PROPERTY:${name},WEFT_WRAPS>>,${weft_tested_static},${weft_tested}>
    weft_flags weft_test_flags)
  if(WEFT_GPU_ONLY) # tools/gpu/CMakeLists.txt has cmocka; tools/gpu has sodium.h
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tools/gpu)
  else()
    target_link_libraries(${name} PRIVATE cmocka)
  endif()
  if(WEFT_QUICK_LINKER) # hundreds of programs of ten megabytes each: it takes half the time
    target_link_options(${name} PRIVATE -fuse-ld=gold)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
endfunction()

function(weft_wrap name)
  list(TRANSFORM ARGN PREPEND LINKER:--wrap=)
  target_link_options(${name} PRIVATE ${ARGN})
  set_target_properties(${name} PROPERTIES WEFT_WRAPS ON)
endfunction()

function(weft_test name)
  if(WEFT_GPU_ONLY)
    return() # weft_cuda_test() alone counts there
  endif()
  cmake_parse_arguments(T "SERIAL" "" "LABELS;ARGS" ${ARGN})
  weft_test_program(${name} ${T_UNPARSED_ARGUMENTS})
  weft_is_deep(deep ${name} ${T_LABELS})
  if(WEFT_SANITIZE AND deep)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    add_dependencies(weft_deep_tests ${name})
  elseif(WEFT_SANITIZE STREQUAL thread AND NOT threads IN_LIST T_LABELS) # it is built when it is asked for
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  add_test(NAME ${name} COMMAND ${name} ${T_ARGS})
  if(T_SERIAL)
    set(serial SERIAL)
  endif()
  weft_test_settings(${name} LABELS ${T_LABELS} ${serial})
endfunction()
