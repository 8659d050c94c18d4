# manifest.sh - a test that installs sources this: at its end the build folder has the manifests of its user's own installations again, which
# the target uninstall reads. $build is the build folder.
kept=$(mktemp -d)
restore_manifests() {
  rm -f "$build"/install_manifest*.txt
  cp -a "$kept/." "$build/"
  rm -rf "$kept"
}
find "$build" -maxdepth 1 -name 'install_manifest*.txt' -exec cp -a {} "$kept/" \;
trap restore_manifests EXIT
