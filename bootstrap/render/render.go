// Package render makes Envoy's bootstrap: typed input in, protobuf and then JSON out. It is pure: it reads no file, no environment
// and no clock, so that equal input gives equal bytes. Only outrider-bootstrap links it.
//
// There are three ways to a bootstrap, and one thing that may be done to the result of each:
//
//	Build and JSON      from bootstrap.Input
//	Template            a text/template of the user's, with Istio's names for the data
//	Custom              a complete bootstrap of the user's
//	Override            merges a file of the user's into any of them, by Envoy's rules
package render

import "outrider.org/outrider/bootstrap"

// Render does all that a request asks for. Its admin socket is bootstrap.AnySocket. What is wrong with a file of the user's is a
// *bootstrap.Error.
func Render(request bootstrap.Request) (*bootstrap.Rendered, error) {
	request.Input.AdminSocket = bootstrap.AnySocket
	text, name, err := base(request)
	if err != nil {
		return nil, err
	}
	if file := request.Override; file != nil {
		if text, err = Override(text, name, file.Path, file.Content); err != nil {
			return nil, err
		}
	}
	files, err := CertificateFiles(text)
	if err != nil {
		return nil, err
	}
	rendered := &bootstrap.Rendered{Text: text, Files: files}
	if request.Custom != nil || request.Template != nil {
		// The file's own admin address counts; it is the same for every epoch.
		network, address, err := AdminAddress(text)
		if err != nil {
			return nil, err
		}
		if network != "unix" || address != bootstrap.AnySocket {
			rendered.Admin = address
		}
	}
	return rendered, nil
}

// base is the bootstrap before the override, and its name in messages.
func base(request bootstrap.Request) (text []byte, name string, err error) {
	switch {
	case request.Custom != nil:
		text, err = Custom(request.Custom.Path, request.Custom.Content)
		return text, request.Custom.Path, err
	case request.Template != nil:
		text, err = Template(request.Template.Path, request.Template.Content, request.Input)
		return text, request.Template.Path, err
	}
	built, err := Build(request.Input)
	if err != nil {
		return nil, "", err
	}
	text, err = JSON(built)
	return text, "bootstrap", err
}
