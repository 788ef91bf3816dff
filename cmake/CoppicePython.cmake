# COPPICE_PYTHON_FOUND: whether the Python package is built, by the option COPPICE_PYTHON; nanobind_add_module is there then.
# nanobind is that of the interpreter, or of build/python-packages, where scripts/test puts the tests' packages.
set(COPPICE_PYTHON_FOUND OFF)
if(NOT COPPICE_PYTHON OR (COPPICE_PYTHON STREQUAL "AUTO" AND COPPICE_SANITIZE))  # an interpreter has no sanitizer to load it
  return()
endif()
set(required QUIET)
if(NOT COPPICE_PYTHON STREQUAL "AUTO")
  set(required REQUIRED)
endif()
find_package(Python 3.10 ${required} COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.SABIModule)
if(Python_FOUND)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env "PYTHONPATH=${PROJECT_SOURCE_DIR}/build/python-packages:$ENV{PYTHONPATH}"
            ${Python_EXECUTABLE} -m nanobind --cmake_dir
    OUTPUT_VARIABLE nanobind_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_package(nanobind ${required} CONFIG HINTS ${nanobind_folder} NO_DEFAULT_PATH)
  set(COPPICE_PYTHON_FOUND ${nanobind_FOUND})
endif()
