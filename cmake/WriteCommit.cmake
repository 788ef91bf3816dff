# Writes OUT, a source with the commit of the working copy SOURCE, where it has changed. Empty where the sources are no working copy.
execute_process(COMMAND git rev-parse --short=10 HEAD WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE commit
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "")
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#include \"cli/version.h\"\n\nconst std::string_view coppice::cli::kCommit = \"${commit}\";\n")
