// What other people's code prints is not the command's result.
#pragma once

namespace greenfast::workbench {

/// While one exists, what this process prints to standard output goes to standard error, whoever
/// prints it and through whatever buffer.
class StdoutAside {
 public:
  StdoutAside();
  ~StdoutAside();
  StdoutAside(const StdoutAside&) = delete;
  StdoutAside& operator=(const StdoutAside&) = delete;

 private:
  int kept_;
};

}  // namespace greenfast::workbench
