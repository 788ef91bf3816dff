# One function per kind of target, so that a layer's CMakeLists.txt is a list of files.
find_package(Threads REQUIRED)

add_library(coppice_flags INTERFACE)
target_compile_options(coppice_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers>
  # GCC 12 sees impossible overlaps in inlined std::string code (GCC bug 105651).
  "$<$<AND:$<BOOL:${COPPICE_WERROR}>,$<COMPILE_LANGUAGE:CXX>>:-Werror;-Wno-error=restrict>")
if(COPPICE_SANITIZE)
  target_compile_options(coppice_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${COPPICE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer>)
  target_link_options(coppice_flags INTERFACE $<$<LINK_LANGUAGE:CXX>:-fsanitize=${COPPICE_SANITIZE}>)
endif()

# Layers of the installed package. They follow BUILD_SHARED_LIBS; all others are linked into what uses them.
set(COPPICE_ATTENTION_LAYERS core attention)
set(COPPICE_ENGINE_LAYERS ops tokenizer model cache runner engine)
set(COPPICE_INSTALLED_LAYERS ${COPPICE_ATTENTION_LAYERS} ${COPPICE_ENGINE_LAYERS})

# coppice_layer(name SOURCES ... DEPENDS ... [PRIVATE_DEPENDS ...] [APART ...] [OPTIMIZE flag]): the library coppice_<name>, alias coppice::<name>.
# With COPPICE_UNITY its sources are compiled several together, but for those of APART: their anonymous namespaces have names of
# others', they set their instruction set, or they call a backend that not every program links. OPTIMIZE is the flag of a Release
# build in place of -O3, for layers that steps do not wait for.
function(coppice_layer name)
  cmake_parse_arguments(ARG "" "OPTIMIZE" "SOURCES;DEPENDS;PRIVATE_DEPENDS;APART" ${ARGN})
  set(type STATIC)
  if(name IN_LIST COPPICE_INSTALLED_LAYERS)
    set(type)
  endif()
  add_library(coppice_${name} ${type} ${ARG_SOURCES})
  add_library(coppice::${name} ALIAS coppice_${name})
  target_include_directories(coppice_${name}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
  target_link_libraries(coppice_${name} PUBLIC ${ARG_DEPENDS} PRIVATE $<BUILD_INTERFACE:coppice_flags> ${ARG_PRIVATE_DEPENDS})
  if(ARG_OPTIMIZE)
    target_compile_options(coppice_${name} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:${ARG_OPTIMIZE}>)
  endif()
  set_source_files_properties(${ARG_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set_target_properties(coppice_${name} PROPERTIES UNITY_BUILD ${COPPICE_UNITY} UNITY_BUILD_BATCH_SIZE 12)
  # Sources that are compiled together are included, and GCC takes their anonymous namespaces for a header's.
  target_compile_options(coppice_${name} PRIVATE $<$<AND:$<BOOL:${COPPICE_UNITY}>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-Wno-subobject-linkage>)
  set_target_properties(coppice_${name} PROPERTIES EXPORT_NAME ${name} INSTALL_RPATH $ORIGIN DEFINE_SYMBOL ""
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endfunction()

# Tests run the kernels of the CPU's instruction set, whatever is measured or was kept.
set(COPPICE_FIXED_KERNELS COPPICE_CPU_PROBE=set:off)

# coppice_test(name SOURCES ... DEPENDS ... [LABELS ...] [ARGS ...]): a GoogleTest program run by ctest as <name>.
# COPPICE_TEST_DATA is the folder tests/data.
function(coppice_test name)
  if(NOT BUILD_TESTING)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LABELS;ARGS" ${ARGN})
  find_package(GTest REQUIRED)
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE coppice_flags ${ARG_DEPENDS} GTest::gmock GTest::gtest GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE COPPICE_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" ENVIRONMENT_MODIFICATION "${COPPICE_FIXED_KERNELS}")
  if("gpu" IN_LIST ARG_LABELS)  # one folder for scripts/check_gpu
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/gpu)
  endif()
endfunction()

# coppice_python_test(name FILE [RUN_SERIAL] [LABELS ...] [ENVIRONMENT ...]): a unittest file run by ctest as <name>. COPPICE is the path of the
# program in its environment; exit status 77 means skipped.
function(coppice_python_test name file)
  if(NOT BUILD_TESTING)
    return()
  endif()
  cmake_parse_arguments(ARG "RUN_SERIAL" "" "LABELS;ENVIRONMENT" ${ARGN})
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  add_test(NAME ${name} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  if(TARGET coppice)
    list(APPEND ARG_ENVIRONMENT COPPICE=$<TARGET_FILE:coppice>)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" ENVIRONMENT "${ARG_ENVIRONMENT}" SKIP_RETURN_CODE 77
    ENVIRONMENT_MODIFICATION "${COPPICE_FIXED_KERNELS}" RUN_SERIAL ${ARG_RUN_SERIAL})
endfunction()

# coppice_bench(name SOURCES ... DEPENDS ...): a Google Benchmark program; built with the target `benches`, never run by ctest.
add_custom_target(benches)
function(coppice_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  find_package(benchmark QUIET)
  if(NOT benchmark_FOUND)
    return()
  endif()
  add_executable(${name} EXCLUDE_FROM_ALL ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE coppice_flags ${ARG_DEPENDS} benchmark::benchmark)
  add_dependencies(benches ${name})
endfunction()
