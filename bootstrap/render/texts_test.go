package render

import "outrider.org/outrider/bootstrap"

// Override and Custom make the functions override and custom available to tests, with documents as
// text.

func Override(base []byte, baseFile, file string, content []byte) ([]byte, error) {
	into, err := parse(baseFile, base)
	if err != nil {
		return nil, err
	}
	if err := override(into, file, content); err != nil {
		return nil, err
	}
	return into.encode()
}

func Custom(file string, content []byte) ([]byte, error) {
	document, text, err := custom(file, content)
	if err != nil || text != nil {
		return text, err
	}
	return document.encode()
}

func Template(file string, content []byte, in bootstrap.Input) ([]byte, error) {
	document, err := expand(file, content, in)
	if err != nil {
		return nil, err
	}
	return document.encode()
}

func AdminAddress(text []byte) (network, address string, err error) {
	document, err := parseJSON("bootstrap", text)
	if err != nil {
		return "", "", err
	}
	return adminAddress(document)
}

func CertificateFiles(text []byte) ([]string, error) {
	document, err := parseJSON("bootstrap", text)
	if err != nil {
		return nil, err
	}
	return certificateFiles(document), nil
}
