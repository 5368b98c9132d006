/* In programs under AddressSanitizer: what a library has loaded stays loaded, so that a leak in it is
   reported, or suppressed (lsan.supp), under the library's name. Open MPI unloads its components
   before the report is made. */
int dlclose(void* handle) {
  (void)handle;
  return 0;
}
